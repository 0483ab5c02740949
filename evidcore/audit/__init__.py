"""Ask whether a score was earned by pixels or by priors.

Belongs here: conditions, under which the same questions are asked again, and the audit of a policy.
Imported by runs.
"""
