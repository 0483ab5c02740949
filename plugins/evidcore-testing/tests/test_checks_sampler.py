"""The check of samplers tells a right one from each that breaks a clause."""

import dataclasses

import pytest
import torch
from evidcore_testing import check_sampler, sampler_parts

from evidcore.train.sampler import InProcess


@pytest.fixture(scope="module")
def world():
    torch.set_num_threads(1)
    return sampler_parts()


class Wrong(InProcess):
    """Spoils what the model wrote."""

    def __init__(self, spoil):
        self.spoil, self.calls = spoil, 0

    def begin(self, model, processor, stop_texts):
        rows = super().begin(model, processor, stop_texts)

        def spoilt(prefixes, sampling, **options):
            self.calls += 1
            return self.spoil(self, rows(prefixes, sampling, **options), sampling)

        return spoilt


def each(change):
    """Return what changes fields of each row."""
    return lambda engine, result, sampling: [
        dataclasses.replace(item, **change(item, sampling)) for item in result
    ]


def longer(one, sampling):
    more = sampling.max_new_tokens
    return {"ids": one.ids * more, "log_probs": one.log_probs * more, "ended": False}


def drift(engine, found, sampling):
    """Write other tokens each time."""
    later = [(token + engine.calls) % 100 + 10 for token in found[0].ids]
    return [dataclasses.replace(found[0], ids=tuple(later), ended=False), *found[1:]]


def beside(engine, found, sampling):
    """Let rows that stand together change each other, where they are greedy."""
    if sampling.temperature or len(found) == 1:
        return found
    return [dataclasses.replace(item, ids=(*item.ids[:-1], 42), ended=False) for item in found]


CHANCES = "each token has a log-probability"
MUTANTS = {
    "every prefix is continued": lambda engine, found, sampling: found[:-1],
    "a row has 1 to 6 tokens": each(longer),
    CHANCES: each(lambda one, sampling: {"log_probs": one.log_probs[:-1]}),
    f"{CHANCES}.*nan": each(lambda one, sampling: {"log_probs": (float("nan"),) * len(one.ids)}),
    "an end token ends the row": each(lambda one, sampling: {"ended": True}),
    "forbidden tokens are not written": each(
        lambda one, sampling: {"ids": (*one.ids[:-1], sampling.forbidden_ids[0]), "ended": False}
    ),
    "equal seeds write the same": drift,
    "a greedy row does not depend on those beside it": beside,
    "entropies are given where it says so": each(lambda one, sampling: {"entropies": ()}),
}


def test_the_model_itself_passes(world):
    check_sampler(InProcess(), *world)


@pytest.mark.parametrize("clause", MUTANTS)
def test_a_sampler_that_breaks_a_clause_is_caught(world, clause):
    with pytest.raises(AssertionError, match=f"Wrong breaks its contract: {clause}"):
        check_sampler(Wrong(MUTANTS[clause]), *world)
