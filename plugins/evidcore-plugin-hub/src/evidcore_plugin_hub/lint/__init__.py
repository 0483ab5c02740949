"""Lint: what components promise, tried on made cases, in a process of its own."""
