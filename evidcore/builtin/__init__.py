"""General components, registered through the core's own entry points like everyone's."""
