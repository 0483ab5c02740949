"""Use from Python: `evidcore.run`, `evidcore.Run` and `evidcore.audit_policy`."""
