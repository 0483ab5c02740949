"""A package around one new component: code, tests and card."""
