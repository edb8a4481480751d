"""The benchmarks that `klms bench` runs, and a plain implementation to compare the codec with."""
