"""Texts of the domain: findings and their words, sentences, answer tags, what two texts agree on."""
