"""Rewards over whole groups of answers, held to their contract and composed. Imported by train."""
