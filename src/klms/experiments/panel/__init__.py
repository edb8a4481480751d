"""The experiment `panel`: what a quality, or a number of bits costs models of a dozen kinds."""
