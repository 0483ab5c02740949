"""Runs: a recipe's parts built, its stages run in order, each stored under the hash of its inputs.

Belongs here: run folder, lock, assembly, execution, reuse, resume, and reading a run without torch (`read`).
Imported by the command line and by packages of commands.
"""
