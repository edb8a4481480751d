"""An app whose rounds only send."""
