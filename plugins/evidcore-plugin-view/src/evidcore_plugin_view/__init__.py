"""The evidence viewer: a run's answers, rollouts and results beside their scans, served to one machine."""
