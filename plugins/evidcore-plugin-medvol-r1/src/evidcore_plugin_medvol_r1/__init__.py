"""MedVol-R1 (arXiv 2605.26621) as components: a task that asks for a key slice and boxes, and its rewards."""
