"""Segmenters: region growing, a propagator that is trained, and the audit of any segmenter."""
