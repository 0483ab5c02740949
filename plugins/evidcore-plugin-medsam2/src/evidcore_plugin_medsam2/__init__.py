"""MedSAM2 (Ma et al. 2025) as a segmenter for evidcore, on transformers' `Sam2VideoModel`."""
