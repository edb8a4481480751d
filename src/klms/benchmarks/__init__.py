"""Benchmarks of speed and quality, which `klms bench` runs, and a plain implementation to compare the codec with."""
