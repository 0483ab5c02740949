"""Training stages: fit one component, supervised fine-tuning, GRPO.

Belongs here: what changes weights. `trl/` alone imports trl, and knows its internals. Imported by runs.
"""
