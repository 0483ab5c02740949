"""Data set `phantom-slices`: fine patterns that only a look at full resolution tells apart."""
