"""What is asked, and how answers come about."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from evidcore.case import Answer, Case, Episode, Part, Prompt, Span
from evidcore.contracts.data import View


class Task(ABC):
    """Ask about cases and read the answers.

    Core gives: `view`, whose box convention is spoken, `recipe_folder` (relative paths start there),
    `cache_folder`.

    `evaluation` names the component that measures its answers. The core's are `choice`, whose prompts have
    `options` and `letter` in their `reference`, and `report`, whose gold answers are read as reports.
    """

    evaluation: ClassVar[str] = ""
    needs_slice_tags: ClassVar[bool] = False
    takes_free_questions: ClassVar[bool] = False  # `ask` has a use for questions without options

    @abstractmethod
    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Return what is asked about `case`, ids unique in a split; `Prompt.task` is the component's name.

        Equal arguments give equal prompts. Training passes another seed each epoch, evaluation always 0.
        """

    def ask(self, case: Case, view: View) -> Sequence[Prompt]:
        """Return what is asked about a scan of which nothing is known, as in `evid predict`.

        The case holds a volume and the questions that someone put, whose right answers nobody knows; their
        gold is never asked for. A task that needs more of a case to find its question returns none.
        """
        return self.prompts(case, view, 0)

    @abstractmethod
    def parse(self, prompt: Prompt, completion: str) -> Answer:
        """Read a completion. Garbage is an Answer with `malformed` set, never an exception."""

    @abstractmethod
    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        """Return a right completion and its labelled spans; `parse` finds it well-formed."""


class Sampler(ABC):
    """What a rollout strategy may do with the policy, whatever engine runs it."""

    @abstractmethod
    def sample(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Continue each episode until the model ends its turn, calls a tool or runs out of tokens."""

    @abstractmethod
    def entropies(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """Return the policy's entropy in nats before each token of each episode."""

    @abstractmethod
    def extend(self, episode: Episode, parts: Sequence[Part]) -> Episode:
        """Append what a tool gave; its tokens get loss mask 0."""

    @abstractmethod
    def fork(self, episode: Episode, token: int) -> Episode:
        """Return the episode cut before its token number `token`, to be continued differently."""

    @abstractmethod
    def text(self, episode: Episode) -> str:
        """Return what the model and its tools wrote, without special tokens."""


class RolloutStrategy(ABC):
    """Kind `rollout`: how the answers of a group come about. Core gives: `tools`, as the stage names them."""

    stop_texts: ClassVar[tuple[str, ...]] = ()  # sampling pauses where the model wrote one of these

    @abstractmethod
    def __call__(self, sampler: Sampler, prompts: Sequence[Prompt], answers_per_prompt: int) -> list[Episode]:
        """Return exactly `answers_per_prompt` episodes for each prompt, in order."""


class Tool(ABC):
    """Something the model may call while it answers. Core gives: `view`, whose box convention is spoken."""

    name: ClassVar[str]
    description: ClassVar[str]
    schema: ClassVar[Mapping[str, Any]]  # JSON schema of the arguments

    @abstractmethod
    def __call__(self, arguments: Mapping[str, Any], prompt: Prompt) -> tuple[Part, ...]:
        """Return text and visual parts.

        Raises:
            ValueError: if the arguments are unusable; the caller gives the message to the model as answer.
        """
