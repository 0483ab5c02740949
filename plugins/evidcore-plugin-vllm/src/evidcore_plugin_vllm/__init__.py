"""Rollouts that a vLLM server writes."""
