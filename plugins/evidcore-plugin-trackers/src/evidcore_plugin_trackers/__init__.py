"""A run's figures in trackers that are not evidcore's."""
