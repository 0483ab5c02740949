"""Metrics of written reports; docs/report_metrics.md tells each by formula, library and blind spot."""
