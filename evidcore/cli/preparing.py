"""`evid check` and `evid plan`: everything before spending time."""
