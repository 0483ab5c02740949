"""Prompts and gold answers as the rows that trainers are given. Imported by proof, train and evaluate."""
