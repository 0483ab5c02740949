"""A policy that is handed text and pixels alone: no case, no report, no key, no id that means anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evidcore.case import Prompt
from evidcore.contracts import Policy
from evidcore.contracts.model import ForwardingPolicy


class AnonymizedPolicy(ForwardingPolicy):
    """Stands before a policy that is measured, so that nothing but its eyes can give it the answer."""

    def __init__(self, policy: Policy) -> None:
        """Take the policy; one that is sealed already is taken as it is."""
        self._policy = unwrapped(policy)

    def forward(self, method: str, prompts: Sequence[Prompt], *columns: Any, **settings: Any) -> Any:
        """Ask the policy."""
        sealed = [prompt.sealed(number) for number, prompt in enumerate(prompts)]
        return getattr(self._policy, method)(sealed, *columns, **settings)


def unwrapped(policy: Policy) -> Policy:
    """Return the policy itself, for what looks at its weights and asks nothing."""
    return policy._policy if isinstance(policy, AnonymizedPolicy) else policy
