"""The commands: `evid data check` and `evid data profile`."""
