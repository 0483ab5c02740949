"""Data sets looked at before anything is trained on them: their faults, and what they hold."""
