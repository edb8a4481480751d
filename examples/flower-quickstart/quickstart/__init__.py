"""A Flower quickstart."""
