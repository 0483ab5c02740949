"""Geometry of scans: boxes on slices, overlap of masks, the body's sides, places of patches."""
