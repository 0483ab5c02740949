"""The only folder that imports trl: its trainers, subclassed."""
