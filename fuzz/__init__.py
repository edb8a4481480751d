"""Coverage-guided fuzzing of everything that reads bytes from outside; `make fuzz` runs it, see docs/reliability.md."""
