"""The pixel-flow proof: rows of real passes react to their own volume and to no other.

Belongs here: what stops a stage whose pixels cannot count. Training and evaluation call it at their start and
every so many steps. It knows models, and no reward. Imported by train and evaluate.
"""
