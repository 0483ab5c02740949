"""The check of samplers: what writes the answers of rollouts."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from evidcore.api import Engine
from evidcore.contracts import Prefix, Sampling
from evidcore.model.policy import sampling_of
from evidcore.train.tiny_model import tiny_model
from evidcore_testing.clauses import Clauses


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
