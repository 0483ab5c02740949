"""Ablations: a recipe's variants over seeds, each cell an ordinary run, compared item by item."""
