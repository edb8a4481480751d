"""The experiment `panel`: the cost of a quality, or of a number of bits, for models of a dozen kinds."""
