"""Compressors: an update vector -> bytes -> an update vector; one file per scheme, no torch."""
