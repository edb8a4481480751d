"""Runs and experiments: settings by name, the run folder, the ledger of bytes."""
