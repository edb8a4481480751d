"""An app whose rounds only exchange models, without training."""
