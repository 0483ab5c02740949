"""Measure a policy: accuracy and findings, beside reference lines, with intervals that respect patients."""
