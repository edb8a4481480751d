"""Deterministic numerics that the codec and the compressors share: kernels, shared randomness, tables, bit packing."""
