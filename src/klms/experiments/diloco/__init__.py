"""The experiment `diloco`: few workers that are always there, AdamW inside and Nesterov momentum outside."""
