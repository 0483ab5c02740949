"""Ask whether a score was earned by pixels or by priors."""
