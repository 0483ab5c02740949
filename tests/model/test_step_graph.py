"""Steps as a GPU's graphs compute them, on a CPU: a graph's repetition is a call of what it captured.

That a real graph gives the same is measured on a GPU: `benchmarks/gpu.sh WHEELS OUT engine`.
"""

import dataclasses
import gc
import logging
import weakref

import pytest
import torch
from torch import nn

from evidcore.model import generation, shared_prefix, step_graph
from evidcore.model.generation import continue_rows
from evidcore.model.policy import VLMPolicy, sampling_of
from evidcore.model.shared_prefix import PrefixCache


@pytest.fixture
def rows(small):
    policy = VLMPolicy(small.model, small.processor)
    return [prefix for prompt in small.prompts for prefix in [policy.prefix(prompt)] * 4]


@pytest.fixture
def settings(small):
    result = sampling_of(small.model, small.processor, max_new_tokens=14, temperature=1.0)
    return dataclasses.replace(result, end_ids=(-1,))  # none ends by itself


@pytest.fixture
def graphs(monkeypatch):
    """Steps that were captured, by their rows and places."""
    taken = []

    def captured(run, device):
        taken.append((len(run.__self__.embeds), run.__self__.shared.window.stop))
        return run

    monkeypatch.setattr(generation, "can_capture", lambda model: True)
    monkeypatch.setattr(step_graph, "captured", captured)
    monkeypatch.setattr(step_graph, "PLACES", 4)
    return taken


def assert_alike(found, wanted):
    for item, other in zip(found, wanted, strict=True):
        assert item.ids == other.ids
        assert item.log_probs == pytest.approx(other.log_probs, abs=1e-5)
        assert item.entropies == pytest.approx(other.entropies, abs=1e-5)


def test_a_graph_holds_while_rows_and_places_do(small, rows, settings, request):
    lengths = [1, 14, 2, 3, 14, 8, 7, 7, 1, 1, 1, 1, 5, 1, 14, 2]
    given = {"seeds": range(16), "stops": lambda row, ids: len(ids) >= lengths[row], "entropies": True}
    wanted = continue_rows(small.model, rows, settings, **given)
    graphs = request.getfixturevalue("graphs")
    result = continue_rows(small.model, rows, settings, **given)
    assert [len(item.ids) for item in result] == lengths
    assert_alike(result, wanted)
    assert graphs == [(10, 4), (7, 4), (7, 8), (3, 12)]


def test_rows_of_several_turns_see_what_they_have_written(small, rows, settings, request):
    def turns():
        memory = PrefixCache(64)
        first = continue_rows(
            small.model, rows, settings, seeds=range(16), memory=memory,
            stops=lambda row, ids: len(ids) > row % 5,
        )  # fmt: skip
        going = [
            dataclasses.replace(row, ids=row.ids + item.ids + (60,) * (number % 3), prompt=row)
            for number, (row, item) in enumerate(zip(rows, first, strict=True))
        ]
        return continue_rows(small.model, going, settings, seeds=range(16), memory=memory, entropies=True)

    wanted = turns()
    graphs = request.getfixturevalue("graphs")
    assert_alike(turns(), wanted)
    assert len(graphs) == 3


def test_a_step_that_is_no_graph_is_computed_and_said_once(
    small, rows, settings, graphs, monkeypatch, caplog
):
    wanted = continue_rows(small.model, rows, settings, seeds=range(16), entropies=True)

    def captured(run, device):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(step_graph, "captured", captured)
    with caplog.at_level(logging.WARNING, logger="evidcore"):
        result = continue_rows(small.model, rows, settings, seeds=range(16), entropies=True)
    assert_alike(result, wanted)
    assert small.model in step_graph._refused
    assert caplog.messages == [
        "tokens are computed launch by launch, the model's step is no CUDA graph: operation not permitted "
        "when stream is capturing"
    ]


def test_rows_are_given_back_at_the_end_of_their_call(small, rows, settings, monkeypatch, graphs):
    def captured(run, device):
        logits = run()
        return lambda: logits  # as a graph's: it holds its output and not the rows

    monkeypatch.setattr(step_graph, "captured", captured)
    held, begin = [], shared_prefix.SharedPrefix.__init__

    def noted(self, *given):
        held.append(weakref.ref(self))
        begin(self, *given)

    monkeypatch.setattr(shared_prefix.SharedPrefix, "__init__", noted)
    gc.disable()
    try:
        continue_rows(small.model, rows, settings, seeds=range(16))
    finally:
        gc.enable()
    assert [item() for item in held] == [None]


def test_a_step_that_does_not_fit_beside_what_lies_unused_is_tried_again(
    small, rows, settings, graphs, monkeypatch
):
    def captured(run, device):
        graphs.append(None)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(step_graph, "captured", captured)
    result = continue_rows(small.model, rows, settings, seeds=range(16))
    assert {len(item.ids) for item in result} == {14}
    assert len(graphs) > 3
    assert small.model not in step_graph._refused


def test_what_is_no_graph(small, monkeypatch):
    assert not step_graph.can_capture(small.model)  # on a CPU
    monkeypatch.setattr(type(small.model), "device", torch.device("cuda"))
    assert step_graph.can_capture(small.model)
    weight = next(small.model.parameters())
    weight.ds_id = 3
    assert not step_graph.can_capture(small.model)  # ZeRO-3 gathers it between layers
    del weight.ds_id
    assert step_graph.can_capture(small.model)

    class Sharded(nn.Linear, step_graph.FSDPModule):
        pass

    layer = nn.Linear(2, 2)
    layer.__class__ = Sharded
    small.model.add_module("sharded", layer)
    assert not step_graph.can_capture(small.model)
