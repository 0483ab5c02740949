"""E-MRL (arXiv 2606.23888) as components: readers that see a slice and no report."""
