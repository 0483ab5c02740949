"""The commands: one module each, named like it."""
