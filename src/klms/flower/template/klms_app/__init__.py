"""An app that runs a method of klms on Flower."""
