"""Runs as one page of tables and figures: written once by `klms report`, or live by `klms serve`."""
