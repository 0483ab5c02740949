"""Training a volume encoder from scratch: targets read from cases, objectives, the loop and its probe."""
