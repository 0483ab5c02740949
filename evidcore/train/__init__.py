"""Training stages: fit one component, supervised fine-tuning, GRPO."""
