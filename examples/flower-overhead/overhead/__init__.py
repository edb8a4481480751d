"""Rounds that do nothing but send."""
