"""The data doctor: what is wrong with a data set, and what can be scored on it without looking."""
