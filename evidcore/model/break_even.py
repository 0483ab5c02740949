"""When a prompt is computed once for its answers: the rule, from what `benchmarks/break_even.py` measured."""

from __future__ import annotations

LEAST_SAVED = 1.2  # docs/results/break_even.json; below, laying answers out costs what it saves


def tokens_saved(prompt_tokens: int, answer_tokens: int, answers: int) -> float:
    """Return how many times fewer tokens the layers see where answers stand in one row with their prompt.

    Args:
        prompt_tokens: places of a prompt, padding included.
        answer_tokens: places of an answer, padding included.
        answers: to each prompt.
    """
    apart = answers * (prompt_tokens + answer_tokens)
    return apart / (prompt_tokens - 1 + answers * answer_tokens)


def pays(prompt_tokens: int, answer_tokens: int, answers: int) -> bool:
    """Tell whether one row is faster than a row for each answer."""
    return tokens_saved(prompt_tokens, answer_tokens, answers) >= LEAST_SAVED
