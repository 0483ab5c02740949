"""Med3D-R1 (arXiv 2602.01200) as components: one module for each of its three mechanisms."""
