"""The experiment `diloco`: a few workers that take part in every round, inner AdamW and outer Nesterov momentum."""
