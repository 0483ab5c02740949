"""`evid data`: look at a data set before anything is trained on it."""

from __future__ import annotations

from evidcore.cli import CommandGroup

data = CommandGroup("data", help="Check, view, profile and prepare a data set.")
