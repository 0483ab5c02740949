"""Pages that open from disk without a network: a run's evidence, and the parts that other pages share."""
