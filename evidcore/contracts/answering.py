"""What is asked, and how answers come about."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from evidcore.case import Action, Answer, Case, Crop, Episode, Part, Prompt, Reply, Span, Turn
from evidcore.contracts.dataset import View


@dataclasses.dataclass(frozen=True)
class Prefix:
    """What a row continues: tokens, and the handles of the images among them."""

    ids: tuple[int, ...]
    handles: tuple[int, ...] = ()
    prompt: Prefix | None = None  # what it begins with, where the row has written since


@dataclasses.dataclass(frozen=True)
class Continuation:
    """What a row wrote."""

    ids: tuple[int, ...]
    # of each token at the temperature; in this process over all tokens, as the trainer's, and a server's
    log_probs: tuple[float, ...]  # over those that it may write: their ratio is how likely those are
    ended: bool  # with an end token
    entropies: tuple[float, ...] = ()  # in nats before each token, of the same distribution; where asked for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy."""

    max_new_tokens: int
    end_ids: tuple[int, ...]
    pad_id: int
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    forbidden_ids: tuple[int, ...] = ()  # never chosen, see `VolumeProcessor.forbidden_ids`


class Rows(Protocol):
    """What continues rows, with the weights of one step."""

    def __call__(
        self, prefixes: Sequence[Prefix], sampling: Sampling, *, seeds: Sequence[int], entropies: bool = False
    ) -> list[Continuation]:
        """Continue each prefix to an end token, a stop text or `max_new_tokens`; each by its seed."""


class Task(ABC):
    """Ask about cases and read the answers.

    Core gives: `view`, whose box convention is spoken, `recipe_folder` (relative paths start there),
    `cache_folder`.

    `evaluation` names the component that measures its answers. The core's are `choice`, whose prompts have
    `options` and `letter` in their `reference`, and `report`, whose gold answers are read as reports.
    """

    evaluation: ClassVar[str] = ""
    training_note: ClassVar[str] = ""  # why training may ask nothing where evaluation asks, and what to do
    needs_slice_tags: ClassVar[bool] = False
    takes_free_questions: ClassVar[bool] = False  # `ask` has a use for questions without options

    @abstractmethod
    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Return what is asked about `case`, ids unique in a split; `Prompt.task` is the component's name.

        Equal arguments give equal prompts; training passes another seed each epoch, evaluation always 0. One
        about some of the view's parts may carry the case with the findings of these.
        """

    def ask(self, case: Case, view: View) -> Sequence[Prompt]:
        """Return what is asked about a scan of which nothing is known, as in `evid predict`.

        The case holds a volume and the questions that someone put, whose right answers nobody knows; their
        gold is never asked for. A task that needs more of a case to find its question returns none.
        """
        return self.prompts(case, view, 0)

    @abstractmethod
    def parse(self, prompt: Prompt, completion: str) -> Answer:
        """Read a completion: what the model wrote in its last turn, where it called tools before.

        Garbage is an Answer with `malformed` set, never an exception.
        """

    @abstractmethod
    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        """Return a right completion and its labelled spans; `parse` finds it well-formed."""

    def gold_turns(self, prompt: Prompt) -> Sequence[Turn]:
        """Return the turns before it, with calls as the model is to write them and what tools replied."""
        return ()


class Sampler(ABC):
    """What a rollout strategy may do with the policy, whatever engine runs it."""

    stop_texts: tuple[str, ...] = ()  # those of the strategy
    reads_entropies: bool = False  # the strategy does: episodes carry them
    keeps_log_probs: bool = False  # the engine is not the policy itself: episodes carry them
    vocabulary: int  # how many tokens it chooses from

    @abstractmethod
    def sample(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Continue each unfinished episode.

        It pauses behind a stop text, and is finished where the model ends its turn or runs out of tokens.
        """

    @abstractmethod
    def extend(self, episode: Episode, parts: Sequence[Part], actions: Sequence[Action] = ()) -> Episode:
        """Append what tools gave in answer to `actions`, as a `Reply`; its tokens get loss mask 0.

        Where that has no place in the model's context, the episode is finished with an empty reply.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return tokens as text, without special tokens."""

    def wrote(self, episode: Episode, one: Continuation, limit: int) -> Episode:
        """Append what the model wrote, up to `limit` tokens; that many end the episode."""
        ids = one.ids[:limit]
        return dataclasses.replace(
            episode, ids=episode.ids + ids, loss_mask=episode.loss_mask + (1,) * len(ids),
            entropies=episode.entropies + one.entropies[:limit],
            log_probs=episode.log_probs + one.log_probs[:limit] * self.keeps_log_probs,
            finished=len(ids) >= limit or one.ended,
        )  # fmt: skip

    def replied(
        self,
        episode: Episode,
        ids: Sequence[int],
        crops: Sequence[tuple[int, Crop]],
        parts: Sequence[Part],
        actions: Sequence[Action],
    ) -> Episode:
        """Append a tool's turn of these tokens, with its crops by their place in the episode."""
        start, none = len(episode.ids), (0.0,) * len(ids)
        reply = Reply(start=start, stop=start + len(ids), actions=tuple(actions), parts=tuple(parts))
        return dataclasses.replace(
            episode, ids=(*episode.ids, *ids), loss_mask=(*episode.loss_mask, *(0 for _ in ids)),
            entropies=episode.entropies + none * self.reads_entropies,
            log_probs=episode.log_probs + none * self.keeps_log_probs, crops=(*episode.crops, *crops),
            replies=(*episode.replies, reply),
        )  # fmt: skip

    def fork(self, episode: Episode, token: int) -> Episode:
        """Return the episode cut before its token number `token`, to be continued differently.

        Raises:
            ValueError: if the model did not write that token.
        """
        is_told = any(reply.start <= token < reply.stop for reply in episode.replies)
        if not 0 <= token < len(episode.ids) or is_told:
            raise ValueError(f"token {token} of {len(episode.ids)} was not written by the model; fork others")
        return dataclasses.replace(
            episode, ids=episode.ids[:token], loss_mask=episode.loss_mask[:token],
            crops=tuple((place, crop) for place, crop in episode.crops if place < token),
            replies=tuple(reply for reply in episode.replies if reply.stop <= token),
            entropies=episode.entropies[:token], log_probs=episode.log_probs[:token], credit=(),
            parent=(episode, token), finished=False,
        )  # fmt: skip

    def text(self, episode: Episode) -> str:
        """Return what the model wrote since tools last replied."""
        return self.decode(episode.ids[episode.replies[-1].stop if episode.replies else 0 :])

    def past_turns(self, episode: Episode) -> tuple[Turn, ...]:
        """Return the turns to which tools replied."""
        starts = (0, *(reply.stop for reply in episode.replies))
        return tuple(
            Turn(text=self.decode(episode.ids[start : reply.start]), actions=reply.actions, reply=reply.parts)
            for start, reply in zip(starts, episode.replies, strict=False)
        )


class RolloutStrategy(ABC):
    """Kind `rollout`: how the answers of a group come about. Core gives: `tools`, as the stage names them."""

    from evidcore.contracts.answering import Sampler as Sampler

    stop_texts: tuple[str, ...] = ()  # sampling pauses where the model wrote one of these
    reads_entropies: bool = False  # of episodes
    functions: Sequence[Mapping[str, Any]] = ()  # that the model is told of, as chat templates take tools
    call_form: str = ""  # how one is called: told where the chat template knows no functions

    @abstractmethod
    def __call__(self, sampler: Sampler, prompts: Sequence[Prompt], answers_per_prompt: int) -> list[Episode]:
        """Return exactly `answers_per_prompt` episodes for each prompt, in order."""


class Tool(ABC):
    """Something the model may call while it answers.

    Core gives: `view`, whose box convention is spoken; to tools of a stage also `encoder_input`, so that
    parameter needs a default.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    schema: ClassVar[Mapping[str, Any]]  # JSON schema of the arguments

    @abstractmethod
    def __call__(self, arguments: Mapping[str, Any], prompt: Prompt) -> tuple[Part, ...]:
        """Return text and visual parts.

        Raises:
            ValueError: if the arguments are unusable; the caller gives the message to the model as answer.
        """
