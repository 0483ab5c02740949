"""Experiments around a recipe: what it needs, what its variants are worth, and its model on another scan."""
