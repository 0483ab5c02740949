"""A plugin as it is published: its wheel, its manifest, its place on the Hub and in this environment."""
