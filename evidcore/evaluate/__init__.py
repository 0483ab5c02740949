"""Measure a policy: accuracy and findings, beside reference lines, with intervals that respect patients.

Belongs here: the stage `evaluate`, blind rules, the one bootstrap. Imported by audit and runs.
"""
