"""Engines run the rounds of a method."""
