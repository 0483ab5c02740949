"""The bridge's tokens are drawn to words of what volumes show."""

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from evidcore_plugin_encoders.align import Align, Aligning
from evidcore_plugin_encoders.testing import tiny_vlm
from evidcore_testing import tiny_language
from evidcore_testing.data import volume_case

from evidcore.api import DataError
from evidcore.builtin.views import Volume
from evidcore.compute.processes import processes
from evidcore.model.assemble import load


def shown(folder, count, first=0):
    """Give volumes that show a nodule or an effusion, and say so."""
    return [volume_case(folder, seed, size_zyx=(12, 16, 16)) for seed in range(first, first + count)]


@pytest.fixture
def parts(tmp_path):
    model, processor = tiny_vlm(tiny_language(tmp_path / "language"))
    return model, processor, shown(tmp_path / "volumes", 24)


def stage(**changed):
    given = {"steps": 60, "cases_per_step": 8, "learning_rate": 1e-2, **changed}
    return Align(kind="align", data=(SimpleNamespace(dataset="chest"),), **given)


def aligned(parts, validation, **changed):
    model, processor, train = parts
    torch.manual_seed(0)
    aligning = Aligning(model, processor, Volume(), model.get_input_embeddings().weight.detach())
    steps = []
    figures = aligning.fit(stage(**changed), train, validation, lambda step, _: steps.append(step))
    return aligning, figures, steps


def test_tokens_of_a_volume_come_to_stand_where_the_words_of_its_findings_do(parts, tmp_path):
    start = {name: weight.clone() for name, weight in parts[0].state_dict().items()}
    aligning, figures, steps = aligned(parts, shown(tmp_path / "others", 12, first=24))
    assert steps == [10, 20, 30, 40, 50, 60]
    some = shown(tmp_path / "others", 12, first=40)
    with torch.no_grad():
        scores = aligning.scores(some, aligning.words(["lung nodule"]))[:, 0]
    there = torch.tensor([case.state_of("lung nodule") == "present" for case in some])
    assert scores[there].min() > scores[~there].max()
    assert figures["validation_auc_min"] > 0.9
    changed = {name for name, weight in parts[0].state_dict().items() if not torch.equal(weight, start[name])}
    assert changed
    assert all(name.startswith("model.bridge.") for name in changed)


def test_channels_of_unequal_size_do_not_hide_what_volumes_show(parts, tmp_path, monkeypatch):
    model, _, _ = parts
    size = torch.logspace(-0.5, 0.5, model.model.encoder.width)
    own = model.model.encoder.forward
    model.model.encoder.forward = lambda volumes: dataclasses.replace(
        seen := own(volumes), features=size * (5 + seen.features)
    )
    seen, norm = [], model.model.bridge.projection.norm_in
    norm.register_forward_hook(lambda *given: seen.append(given[-1].detach()))
    _, figures, _ = aligned(parts, shown(tmp_path / "others", 12, first=24))
    first = seen[1]  # after the pass that is measured
    torch.testing.assert_close(first.std((0, 1)), torch.ones(len(size)), atol=0.35, rtol=0)
    assert first.mean((0, 1)).abs().max() < 0.35
    assert figures["validation_auc_min"] > 0.9
    weight = norm.weight.clone()
    monkeypatch.setattr(type(model.model.bridge), "load_from", lambda *given: None)  # as published ones have
    Aligning(model, parts[1], Volume(), torch.zeros(4, 4)).standardise(parts[2], torch.zeros(1, 4))
    assert torch.equal(norm.weight, weight)


def test_sentences_of_reports_serve_as_names_do(parts, tmp_path):
    aligning, figures, _ = aligned(parts, [], texts="sentences")
    assert figures.keys() == {"steps", "loss"}
    reports = [case.report.text.split(". ") for case in parts[2][:2]]
    texts = [next(text for text in reports[0] if text not in reports[1]), reports[1][0]]
    with torch.no_grad():
        scores = aligning.scores(parts[2][:8], aligning.words(texts))
    nodule_minus_effusion = scores[:, 0] - scores[:, 1]
    assert nodule_minus_effusion[0::2].min() > nodule_minus_effusion[1::2].max()


def test_cases_that_say_nothing_are_refused_with_the_remedy(parts, monkeypatch):
    model, processor, train = parts
    silent = [dataclasses.replace(case, report=None, findings=()) for case in train]
    nothing = 'align: no case says anything about a finding. Take cases that do, or write texts = "sent'
    for some, changed, text in (
        (train[:3], {}, "align: 3 training cases, but a step takes cases_per_step = 8. Give more"),
        (silent, {}, nothing),
        (silent, {"texts": "sentences"}, "align: 24 of 24 cases have no report, the first is case-0. Leave"),
    ):
        with pytest.raises(DataError, match=text):
            aligned((model, processor, some), [], **changed)
    monkeypatch.setattr(processes(), "count", 9)
    with pytest.raises(DataError, match="align: 9 processes cannot share cases_per_step = 8 cases"):
        aligned(parts, [])


def test_a_run_saves_the_model_with_its_bridge(parts, tmp_path):
    model, processor, train = parts
    around = SimpleNamespace(has_weights={"language"})
    assert list(Align.problems({}, (), around)) == []
    assert around.has_weights == {"language", "bridge"}
    assert [text for _, text in Align.problems({}, (), SimpleNamespace(has_weights=set()))] == [
        "the language model has no weights, so its words mean nothing. Fit model.language above."
    ]
    context = SimpleNamespace(
        model=lambda: (model, processor), view=Volume(), cases=lambda use: train, split=lambda *_: [],
        recipe=SimpleNamespace(seed=3), folder=tmp_path, announce=SimpleNamespace(step_finished=print),
    )  # fmt: skip
    result = stage(steps=2).run(context)
    assert result.figures["steps"] == 2
    again, _ = load(tmp_path / "checkpoint")
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name


@pytest.mark.slow
def test_two_processes_align_as_one_does(tmp_path, torchrun):
    tiny_language(tmp_path / "language")
    for count in (1, 2):
        torchrun(count, __file__, tmp_path)
    one, two = (torch.load(tmp_path / f"{count}.pt") for count in (1, 2))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        torch.testing.assert_close(torch.as_tensor(two[name]), torch.as_tensor(weight), rtol=0, atol=1e-5)


if __name__ == "__main__":
    home, rank = Path(sys.argv[1]), str(processes().rank)
    torch.manual_seed(0)
    made = (*tiny_vlm(home / "language"), shown(home / rank, 24))
    _, measured, _ = aligned(made, shown(home / rank, 11, first=24), steps=10)
    if processes().is_first:
        torch.save({**made[0].state_dict(), **measured}, home / f"{processes().count}.pt")
    processes().wait()
