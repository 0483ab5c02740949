"""What leaves the machine of a run: its model with a card, and recipe and lock without paths and names."""
