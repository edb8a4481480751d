"""The experiment `panel`: what a constant quality, or a fixed rate, costs for models of a dozen kinds."""
