"""A language model small enough to be trained on a recipe's own texts in minutes."""
