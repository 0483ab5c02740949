"""Rewards over whole groups of answers, and the proof that what they teach reaches the pixels."""
