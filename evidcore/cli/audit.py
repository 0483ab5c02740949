"""`evid audit`: the group of what asks whether a score is earned by the pixels."""

from evidcore.cli import CommandGroup

audit = CommandGroup(
    "audit",
    help="Ask whether a score is earned by the pixels, what a reward pays for, what a segmenter can give.",
)
