"""Federated methods: what a client does, what the server does, and the state between rounds. Imports no torch."""
