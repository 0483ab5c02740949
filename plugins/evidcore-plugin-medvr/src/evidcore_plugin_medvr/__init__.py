"""Rollouts with tools as components: what MedVR (arXiv 2604.08203) builds on."""
