import dataclasses

import pytest
import torch
from evidcore_testing import check_sampler, sampler_parts
from mutants import caught

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
            return self.spoil(self.calls, rows(prefixes, sampling, **options), sampling)

        return spoilt


def each(change):
    """Return what changes fields of each row."""
    return lambda calls, result, sampling: [
        dataclasses.replace(item, **change(item, sampling)) for item in result
    ]


def longer(item, sampling):
    more = sampling.max_new_tokens
    return {"ids": item.ids * more, "log_probs": item.log_probs * more, "ended": False}


def forbidden(item, sampling):
    return {"ids": (*item.ids[:-1], sampling.forbidden_ids[0]), "ended": False}


def drift(calls, result, sampling):
    """Write other tokens each time."""
    later = [(token + 2 * calls) % 100 | 1 for token in result[0].ids]
    return [dataclasses.replace(result[0], ids=tuple(later), ended=False), *result[1:]]


def beside(calls, result, sampling):
    """Let rows that stand together change each other, where they are greedy."""
    if sampling.temperature or len(result) == 1:
        return result
    return [dataclasses.replace(item, ids=(*item.ids[:-1], 42), ended=False) for item in result]


CHANCES = "each token has a log-probability"
MUTANTS = {
    "every prefix is continued. 3 of 4": lambda calls, result, sampling: result[:-1],
    r"a row has 1 to 6 tokens. \d+": each(longer),
    f"{CHANCES}.* of 6 tokens": each(lambda item, sampling: {"log_probs": item.log_probs[:-1]}),
    f"{CHANCES}.*nan": each(lambda item, sampling: {"log_probs": (float("nan"),) * len(item.ids)}),
    r"an end token ends the row. \[\] of 6": each(lambda item, sampling: {"ended": True}),
    r"forbidden tokens are not written. \[\d": each(forbidden),
    "equal seeds write the same": drift,
    "a greedy row does not depend on those beside it": beside,
    "entropies are given where it says so. 0": each(lambda item, sampling: {"entropies": ()}),
}


def test_the_model_itself_passes(world):
    check_sampler(InProcess(), *world)


@pytest.mark.parametrize("message", MUTANTS)
def test_a_sampler_that_breaks_a_clause_is_caught(world, message):
    with caught(message):
        check_sampler(Wrong(MUTANTS[message]), *world)
