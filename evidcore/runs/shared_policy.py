"""A policy that all processes of a run answer for, while the first one measures.

Order of events: the first process opens a policy, the others open the same one; at each question to it, the
prompts are dealt out, everyone answers a share, and the first puts the answers together. An exception in
anyone's share is raised in the first; when the first stops, the others leave after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evidcore.compute.processes import processes
from evidcore.contracts.model import ForwardingPolicy
from evidcore.model.policy import VLMPolicy


@dataclasses.dataclass(frozen=True)
class _Opened:
    """The first process opened a policy with these arguments."""

    arguments: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _Asked:
    """The first process asks: a method, its columns with an entry for each prompt, its other arguments."""

    policy: int
    method: str
    columns: Sequence[Sequence[Any]]
    arguments: Mapping[str, Any]

    def share(self, policy: VLMPolicy) -> _Share:
        """Return what this process answers."""
        mine = processes().block(len(self.columns[0]))  # questions of a volume stay together
        method = getattr(policy, self.method)
        try:
            return _Share(method(*(column[mine] for column in self.columns), **self.arguments))
        except Exception as error:
            return _Share([], error if processes().is_first else _sendable(error))


@dataclasses.dataclass(frozen=True)
class _Share:
    """What one process answers, or why it cannot."""

    answers: list[Any]
    error: Exception | None = None


@dataclasses.dataclass(frozen=True)
class _Stopped:
    """The first process stopped at an error."""


def _sendable(error: Exception) -> Exception:
    """Return an exception as another process can raise it, with what it looked like here."""
    text = "".join(traceback.format_exception(error))
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:  # of a class that cannot be sent
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(f"in process {processes().rank}:\n{text}")
    return copy


class SharedPolicy(ForwardingPolicy, VLMPolicy):
    """In the first process; the others are in `serve`. Draws are seeded by prompt, whoever answers it."""

    def __init__(self, policy: VLMPolicy, number: int) -> None:
        """Take the policy that was opened as the `number`-th of its stage."""
        vars(self).update(vars(policy))  # a proof of what is asked looks at weights, precision, opening
        self._own, self._number = policy, number

    def forward(self, method: str, *columns: Sequence[Any], **settings: Any) -> list[Any]:
        """Deal the prompts out, and put the answers together."""
        call = processes().share(_Asked(self._number, method, columns, settings))
        shares = processes().gather(call.share(self._own))
        for error in (share.error for share in shares if share.error):
            raise error
        return [answer for share in shares for answer in share.answers]


class Opener:
    """Opens the policies of one stage."""

    def __init__(self, make: Callable[..., VLMPolicy]) -> None:
        """Take what makes a policy from arguments that can be sent to other processes."""
        self._make, self._count = make, 0

    def open(self, **arguments: Any) -> VLMPolicy:
        """Return a policy; with other processes, one that they answer too."""
        if processes().count == 1:
            return self._make(**arguments)
        processes().share(_Opened(arguments))
        number, self._count = self._count, self._count + 1
        return SharedPolicy(self._make(**arguments), number)


@contextlib.contextmanager
def worker_group() -> Iterator[None]:
    """Let the others go on at the end, or leave where the stage stops at an error."""
    try:
        yield
    except Exception:
        processes().share(_Stopped())
        raise
    processes().share(None)


def serve(make: Callable[..., VLMPolicy]) -> None:
    """Answer shares until the first process is through with its stage."""
    policies: list[VLMPolicy] = []
    while (call := processes().share(None)) is not None:
        if isinstance(call, _Stopped):
            with contextlib.suppress(RuntimeError):
                processes().wait()  # a launcher blames, and stops all for, the one that leaves first
            raise SystemExit(1)
        if isinstance(call, _Opened):
            policies.append(make(**call.arguments))
        else:
            processes().gather(call.share(policies[call.policy]))
