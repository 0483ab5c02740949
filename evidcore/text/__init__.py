"""Answer tags in texts. Imported by builtin, evaluate and packages."""
