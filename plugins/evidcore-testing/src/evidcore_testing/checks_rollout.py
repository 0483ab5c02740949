"""The checks of rollout strategies, and of samplers, which write the answers of rollouts."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from evidcore.api import Engine, Episode, Prompt, RolloutStrategy
from evidcore.case import Action, Part
from evidcore.contracts import Prefix, Sampler, Sampling
from evidcore.model.policy import sampling_of
from evidcore.train.tiny_model import tiny_model
from evidcore_testing.clauses import Clauses


class _Witness(Sampler):
    """The sampler that it is given, with a ledger of what came out."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler, self.stop_texts = sampler, sampler.stop_texts
        self.reads_entropies, self.vocabulary = sampler.reads_entropies, sampler.vocabulary
        self.given: dict[tuple[str, tuple[int, ...]], list[Episode]] = {}

    def _seen(self, episode: Episode) -> Episode:
        self.given.setdefault((episode.prompt.id, episode.ids), []).append(episode)
        return episode

    def sample(self, episodes: Sequence[Episode]) -> list[Episode]:
        return [self._seen(episode) for episode in self.sampler.sample(episodes)]

    def extend(self, episode: Episode, parts: Sequence[Part], actions: Sequence[Action] = ()) -> Episode:
        return self._seen(self.sampler.extend(episode, parts, actions))

    def fork(self, episode: Episode, token: int) -> Episode:
        return self._seen(self.sampler.fork(episode, token))

    def decode(self, ids: Sequence[int]) -> str:
        return self.sampler.decode(ids)


def check_rollout(
    strategy: RolloutStrategy,
    sampler: Sampler,
    prompts: Sequence[Prompt],
    *,
    answers_per_prompt: int = 3,
    most_tokens: int | None = None,
) -> None:
    """Assert the contract of a rollout strategy.

    - exactly as many episodes per prompt as asked for, in order;
    - every token came from the sampler, and carries the loss mask that it gave: 1 where the model
      wrote, 0 where a tool did; a whole turn of the model, and what a fork has of its parent, may be kept
      out of training by 0;
    - replies of tools and the parent of a fork stay as the sampler gave them;
    - something that the model wrote is trained;
    - the budget is kept.

    Args:
        strategy: the component under test.
        sampler: a real one, with the strategy's `stop_texts`; `TinySampler` with `turns` that call a tool,
            for a strategy that has tools.
        prompts: at least two.
        answers_per_prompt: the group size.
        most_tokens: the most that the model may write in an episode, where there is a budget.
    """
    if sampler.stop_texts != tuple(strategy.stop_texts):
        raise ValueError(
            f"the sampler pauses behind {sampler.stop_texts}, {type(strategy).__name__} behind "
            f"{strategy.stop_texts}; give the sampler stop_texts={strategy.stop_texts}"
        )
    if strategy.reads_entropies and not sampler.reads_entropies:
        raise ValueError(f"{type(strategy).__name__} reads entropies; give the sampler reads_entropies=True")
    check = Clauses(strategy)
    for count in (answers_per_prompt, 1):
        witness = _Witness(sampler)
        episodes = list(strategy(witness, prompts, count))
        clause = "exactly as many episodes per prompt as asked for, in order"
        expected = [prompt for prompt in prompts for _ in range(count)]
        got = f"must be {len(expected)} for {len(prompts)} prompts, got {len(episodes)}"
        check(len(episodes) == len(expected), clause, got)
        for index, (episode, prompt) in enumerate(zip(episodes, expected, strict=True)):
            got = f"episode {index} answers {episode.prompt.id!r}, must answer {prompt.id!r}"
            check(episode.prompt == prompt, clause, got)
            where = f"(episode {index}, {len(episode.ids)} tokens)"
            given = witness.given.get((prompt.id, episode.ids), [])
            check(given, "every token came from the sampler", f"not so for {episode.ids[:8]}... {where}")
            edges = {edge for reply in episode.replies for edge in (reply.start, reply.stop)}
            edges |= {episode.parent[1]} if episode.parent else set()
            odd = [
                place
                for start, stop in itertools.pairwise(sorted({0, *edges, len(episode.ids)}))
                if any(own := episode.loss_mask[start:stop]) and own != given[0].loss_mask[start:stop]
                for place in range(start, stop)
            ]
            clause_mask = "the loss mask is 1 where the model wrote and 0 where a tool did"
            check(not odd, clause_mask, f"wrong at tokens {odd[:8]} {where}")
            known = any(item.replies == episode.replies and item.parent is episode.parent for item in given)
            clause_replies = "replies of tools and the parent of a fork stay as the sampler gave them"
            check(known, clause_replies, f"changed {where}")
            check(any(episode.loss_mask), "something is trained", f"no token of the model {where}")
            within = most_tokens is None or episode.written <= most_tokens
            got = f"must be at most {most_tokens}, got {episode.written} {where}"
            check(within, "the budget is kept", got)


def sampler_parts() -> tuple[Any, Any, list[Prefix], Sampling]:
    """Return a tiny model, its processor, two prefixes and sampling settings: what `check_sampler` takes."""
    model, processor, source = tiny_model()
    prefixes = [Prefix(processor.encode(source[at].prompt).ids[:length]) for at, length in ((0, 30), (1, 20))]
    settings = sampling_of(model, processor, max_new_tokens=6, temperature=1.0)
    half = {*range(0, len(processor.tokenizer), 2)} - {*settings.end_ids}
    settings = dataclasses.replace(settings, forbidden_ids=tuple(sorted({*settings.forbidden_ids} | half)))
    return model.eval(), processor, prefixes, settings


def check_sampler(
    engine: Engine, model: Any, processor: Any, prefixes: Sequence[Prefix], sampling: Sampling
) -> None:
    """Assert the contract of a sampler.

    - every prefix is continued, in order, by 1 to `max_new_tokens` tokens, each with a log-probability;
    - a row has ended where its last token is an end token, and none comes before;
    - tokens that are forbidden are never written;
    - equal seeds write the same, and greedy rows the same whatever stands beside them;
    - entropies are given where the sampler says so.

    Args:
        engine: the component under test; what it needs beside the model is there.
        model: a VolumeVLM in evaluation mode.
        processor: its processor.
        prefixes: two or more that differ.
        sampling: with a temperature above 0.
    """
    check = Clauses(engine)
    rows = engine.begin(model, processor, ())
    doubled = [prefix for prefix in prefixes for _ in range(2)]
    seeds, entropies = range(len(doubled)), engine.gives_entropies
    result, again = (rows(doubled, sampling, seeds=seeds, entropies=entropies) for _ in range(2))
    check(len(result) == len(doubled), "every prefix is continued", f"{len(result)} of {len(doubled)}")
    most = sampling.max_new_tokens
    for item in result:
        count, chances = len(item.ids), item.log_probs
        check(0 < count <= most, f"a row has 1 to {most} tokens", count)
        fits = len(chances) == count and all(math.isfinite(value) and value <= 0 for value in chances)
        check(fits, "each token has a log-probability", f"{chances} of {count} tokens")
        ends = [place for place, token in enumerate(item.ids, start=1) if token in sampling.end_ids]
        check(ends == [count] * item.ended, "an end token ends the row", f"{ends} of {count}")
        written = sorted({*item.ids} & {*sampling.forbidden_ids})
        check(not written, "forbidden tokens are not written", written)
        given = len(item.entropies)
        check(given == count * entropies, "entropies are given where it says so", given)
    same = [item.ids for item in result] == [item.ids for item in again]
    check(same, "equal seeds write the same", "other tokens the second time")
    greedy = dataclasses.replace(sampling, temperature=0.0)
    together = rows(doubled, greedy, seeds=seeds)
    apart = [rows([prefix], greedy, seeds=[0])[0].ids for prefix in prefixes for _ in range(2)]
    same = [item.ids for item in together] == apart
    check(same, "a greedy row does not depend on those beside it", "other tokens alone")
