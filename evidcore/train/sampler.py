"""A policy as a `Sampler`: an engine continues rows by their seeds, tools add turns; and one with a strategy.

What a tool says is never read as the model's words: an answer is the text of the last turn.
"""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from evidcore.case import Action, Crop, Episode, Part, Prompt
from evidcore.contracts import Completion, Engine, Prefix, RolloutStrategy, Rows, Sampler, Sampling
from evidcore.errors import ContractError
from evidcore.model.generation import continue_rows
from evidcore.model.policy import VLMPolicy, draw_seed, sampling_of
from evidcore.model.processor import VolumeProcessor, refuse_too_long
from evidcore.model.shared_prefix import PrefixCache
from evidcore.model.vlm import VolumeVLM


class InProcess(Engine):
    """The trained model itself, each prompt computed once for all its answers."""

    is_policy: ClassVar[bool] = True
    gives_entropies: ClassVar[bool] = True

    def begin(self, model: VolumeVLM, processor: VolumeProcessor, stop_texts: Sequence[str]) -> Rows:
        """Return passes of the model, which know nothing of earlier weights."""
        if not stop_texts:
            return functools.partial(continue_rows, model)
        tokenizer, memory = processor.tokenizer, PrefixCache(0)  # answers of several turns
        # tokens that can be the last of a stop text: others need no look at the text
        last = {text[-1] for text in stop_texts}
        closing = {number for number in range(len(tokenizer)) if last & {*tokenizer.decode([number])}}

        def stops(row: int, ids: list[int]) -> bool:
            return ids[-1] in closing and tokenizer.decode(ids[-32:]).rstrip().endswith((*stop_texts,))

        return functools.partial(continue_rows, model, stops=stops, memory=memory)


class PolicySampler(Sampler):
    """Samples the answers of one step, or of one round of questions.

    The seed of an answer is made of the stage's seed, the prompt's position in the stream (or its id) and how
    many answers this prompt has had here; nothing else changes what is drawn.
    """

    def __init__(
        self,
        model: VolumeVLM,
        processor: VolumeProcessor,
        sampling: Sampling,
        positions: Mapping[int, int | str],
        *,
        seed: int,
        strategy: RolloutStrategy | None = None,
        rows_per_pass: int = 256,
        engine: Engine | None = None,
    ) -> None:
        """Take the policy, with its weights as they are now.

        `positions` tells each prompt's position in the stream, or its name, by its `id`. `max_new_tokens`
        counts what the model writes in a whole episode. At most `rows_per_pass` are sampled together; a group
        stays whole where it fits.
        """
        self.model, self.processor, self.sampling = model, processor, sampling
        self.positions, self.seed, self.rows_per_pass = positions, seed, rows_per_pass
        if strategy is not None:
            self.stop_texts, self.reads_entropies = tuple(strategy.stop_texts), strategy.reads_entropies
        self.opening = processor.opening_of(strategy)
        self.vocabulary = model.config.get_text_config().vocab_size
        self._drawn: Counter[int | str] = Counter()
        # by the prompt's id, which stays its own while the prompt is held here
        self._prefixes: dict[int, tuple[Prompt, Prefix]] = {}
        engine = engine or InProcess()
        self.keeps_log_probs = not engine.is_policy
        self.continue_rows = engine.begin(model, processor, self.stop_texts)

    def sample(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Continue each unfinished episode; one that has spent its tokens is finished as it is."""
        most = self.sampling.max_new_tokens
        episodes = [
            dataclasses.replace(item, finished=item.finished or item.written >= most) for item in episodes
        ]
        going = [place for place, episode in enumerate(episodes) if not episode.finished]
        seeds = {}
        for place in going:
            position = self.positions[id(episodes[place].prompt)]
            seeds[place] = draw_seed(self.seed, f"{position}/{self._drawn[position]}")
            self._drawn[position] += 1
        result = list(episodes)
        for some in self._passes(episodes, going):
            budget = [most - episodes[place].written for place in some]
            results = self.continue_rows(
                [self.prefix(episodes[place]) for place in some],
                dataclasses.replace(self.sampling, max_new_tokens=max(budget)),
                seeds=[seeds[place] for place in some],
                entropies=self.reads_entropies,
            )
            for place, item, limit in zip(some, results, budget, strict=True):
                result[place] = self.wrote(episodes[place], item, limit)
        return result

    def _passes(self, episodes: Sequence[Episode], going: Sequence[int]) -> Iterator[list[int]]:
        """Yield places to be sampled together: a prompt is computed once for the answers in one pass."""
        some: list[int] = []
        for _, run in itertools.groupby(going, key=lambda place: id(episodes[place].prompt)):
            group = list(run)
            if some and len(some) + len(group) > self.rows_per_pass:
                yield some
                some = []
            some += group
            while len(some) > self.rows_per_pass:
                yield some[: self.rows_per_pass]
                some = some[self.rows_per_pass :]
        if some:
            yield some

    def score(self, episodes: Sequence[Episode]) -> list[tuple[float, ...]]:
        """Return the log-probability of each token of each episode's first turn, as sampling computes it."""
        result = continue_rows(
            self.model, [self.asked(episode.prompt) for episode in episodes], self.sampling,
            forced=[item.ids[: item.replies[0].start] if item.replies else item.ids for item in episodes],
        )  # fmt: skip
        return [item.log_probs for item in result]

    def extend(self, episode: Episode, parts: Sequence[Part], actions: Sequence[Action] = ()) -> Episode:
        """Append a tool's turn; an episode that would outgrow the model's context is finished instead."""
        turn = self.processor.encode_tool_turn(parts)
        length = len(self.prefix(episode).ids) + len(turn.ids)
        limit = getattr(self.model.config.text_config, "max_position_embeddings", None)
        if limit is not None and length >= limit:
            return dataclasses.replace(self.replied(episode, (), (), (), actions), finished=True)
        image = self.processor.image_token_id
        crops, place = [], 0
        for crop in turn.crops:
            place = turn.ids.index(image, place)
            crops.append((len(episode.ids) + place, crop))
            place += self.processor.image_processor.tokens(crop)
        return self.replied(episode, turn.ids, crops, parts, actions)

    def decode(self, ids: Sequence[int]) -> str:
        """Return tokens as text, without special tokens."""
        decoded: str = self.processor.tokenizer.decode(ids, skip_special_tokens=True)
        return decoded

    def asked(self, prompt: Prompt) -> Prefix:
        """Return what the model reads of a prompt; each is encoded once."""
        if id(prompt) not in self._prefixes:
            encoded = self.processor.encode(prompt, self.opening)
            most = self.sampling.max_new_tokens
            refuse_too_long(self.processor.context_tokens, prompt.id, len(encoded.ids), most)
            self._prefixes[id(prompt)] = prompt, Prefix(encoded.ids, self._handles(encoded.crops))
        return self._prefixes[id(prompt)][1]

    def prefix(self, episode: Episode) -> Prefix:
        """Return everything the model reads before the next token."""
        prompt = self.asked(episode.prompt)
        if not episode.ids:
            return prompt
        handles = self._handles([crop for _, crop in episode.crops])
        return Prefix(prompt.ids + episode.ids, prompt.handles + handles, prompt)

    def _handles(self, crops: Sequence[Crop]) -> tuple[int, ...]:
        return tuple(self.processor.image_processor.handle(crop) for crop in crops)


def run_strategy(
    strategy: RolloutStrategy, sampler: Sampler, prompts: Sequence[Prompt], answers_per_prompt: int
) -> list[Episode]:
    """Run a strategy and hold it to its contract: whole groups, in order."""
    episodes = strategy(sampler, prompts, answers_per_prompt)
    name = type(strategy).__name__
    wanted = len(prompts) * answers_per_prompt
    if len(episodes) != wanted:
        raise ContractError(
            f"rollout {name}: must give {answers_per_prompt} answers to each of {len(prompts)} prompts, got "
            f"{len(episodes)} in place of {wanted}."
        )
    for index, episode in enumerate(episodes):
        prompt = prompts[index // answers_per_prompt]
        if episode.prompt is not prompt or not episode.ids:
            raise ContractError(
                f"rollout {name}: answer {index} must be one to prompt {prompt.id!r} and hold a token, got "
                f"{len(episode.ids)} tokens to prompt {episode.prompt.id!r}."
            )
    return episodes


def parents(group: Sequence[Episode]) -> list[tuple[int, int] | None]:
    """Return which of a prompt's answers each was forked from, and the first token that they do not share.

    Where the parent was not kept its own parent stands in its place. The parent may have gone on since.
    """
    result: list[tuple[int, int] | None] = []
    for episode in group:
        link, first = episode.parent, len(episode.ids)
        place = None
        while link is not None and place is None:
            parent, token = link
            first, link = min(first, token), parent.parent
            rest = [
                number
                for number, item in enumerate(group)
                if item.parent is parent.parent and item.ids[: len(parent.ids)] == parent.ids
            ]
            place = rest[0] if rest else None
        result.append(None if place is None else (place, first))
    return result


class RolloutPolicy(VLMPolicy):
    """Answers as it is trained to: by a rollout strategy, with its tools. An answer is its last turn."""

    def __init__(
        self, model: VolumeVLM, processor: VolumeProcessor, strategy: RolloutStrategy, **given: Any
    ) -> None:
        """Take model, processor and strategy, and what any policy takes besides."""
        super().__init__(model, processor, **given)
        self.strategy = strategy
        self.opening = processor.opening_of(strategy)

    def complete(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[Completion]:
        """Return what is written in each answer's last turn, and the turns before it."""
        sampling = sampling_of(
            self.model, self.processor, max_new_tokens=max_new_tokens, temperature=temperature,
            strategy=self.strategy,
        )  # fmt: skip
        sampler = PolicySampler(
            self.model, self.processor, sampling, {id(prompt): prompt.id for prompt in prompts},
            seed=self.seed, strategy=self.strategy, rows_per_pass=self.prompts_per_pass,
        )  # fmt: skip
        result: dict[int, Completion] = {}
        lengths = [len(sampler.asked(prompt).ids) for prompt in prompts]
        for batch in self._batches(lengths):
            with self.asking():
                episodes = run_strategy(self.strategy, sampler, [prompts[place] for place in batch], 1)
            for place, episode in zip(batch, episodes, strict=True):
                result[place] = Completion(
                    text=sampler.text(episode), turns=sampler.past_turns(episode),
                    is_cut_off=episode.ids[-1] not in sampling.end_ids,
                )  # fmt: skip
        return [result[place] for place in range(len(prompts))]
