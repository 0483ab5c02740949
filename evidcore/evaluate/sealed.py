"""A policy that is handed text and pixels alone: no case, no report, no key, no id that means anything."""

from __future__ import annotations

from collections.abc import Sequence

from evidcore.case import Prompt
from evidcore.contracts import Completion, Policy


class Sealed(Policy):
    """Stands before a policy that is measured, so that nothing but its eyes can give it the answer."""

    def __init__(self, policy: Policy) -> None:
        """Take the policy; one that is sealed already is taken as it is."""
        self._policy = unsealed(policy)

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        """Return what the policy writes."""
        return self._policy.generate(_sealed(prompts), max_new_tokens=max_new_tokens, temperature=temperature)

    def complete(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[Completion]:
        """Return what the policy writes, with its turns."""
        return self._policy.complete(_sealed(prompts), max_new_tokens=max_new_tokens, temperature=temperature)

    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Return what the policy thinks of the completions."""
        return self._policy.log_likelihoods(_sealed(prompts), completions)


def unsealed(policy: Policy) -> Policy:
    """Return the policy itself, for what looks at its weights and asks nothing."""
    return policy._policy if isinstance(policy, Sealed) else policy


def _sealed(prompts: Sequence[Prompt]) -> list[Prompt]:
    return [prompt.sealed(number) for number, prompt in enumerate(prompts)]
