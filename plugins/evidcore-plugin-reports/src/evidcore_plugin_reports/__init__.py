"""Measures of texts: overlap of words, embeddings, reward models, and language models as judges."""
