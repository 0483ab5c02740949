"""Metrics of written reports; docs/reference/report_metrics.md gives formula, library and blind spot."""
