"""Runs as one page: tables and figures from ledgers, to keep (`klms report`) or to watch (`klms serve`)."""
