"""Published CT sets, each in the layout of its publisher."""
