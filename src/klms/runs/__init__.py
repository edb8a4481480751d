"""Runs of one method: settings, the run folder, execution, trackers and export."""
