"""Compressors: an update vector -> bytes -> an update vector; one file a scheme. No torch here."""
