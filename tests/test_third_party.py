"""A package that somebody else wrote: installed by pip, listed without running, blamed when it is broken."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from evidcore_testing import check_reward, tiny_language, volume_case
from evidcore_testing.recipes import recipe_text

from evidcore.api import Answer, Prompt, Rollout, TextPart
from evidcore.registry.factory import build

EXAMPLES = Path(__file__).parents[1] / "examples"
IMPORTED = "evid_reward_laterality.py.imported"
BROKEN = {
    "evid-cannot-import": (
        "raise ImportError('needs libgrief.so')",
        "[evidcore.reward]\ncannot-import = evid_cannot_import:It\n",
    ),
    "evid-no-such-class": ("", "[evidcore.reward]\nno-such-class = evid_no_such_class:It\n"),
    "evid-not-a-target": ("", "[evidcore.reward]\nnot-a-target = just words\n"),
}
UNREADABLE = "[evidcore.reward]\nno equals sign here\n"  # torch itself cannot be imported beside it


@pytest.fixture
def site(example_site, monkeypatch):
    (example_site / IMPORTED).unlink(missing_ok=True)
    monkeypatch.syspath_prepend(example_site)
    yield example_site
    sys.modules.pop("evid_reward_laterality", None)  # the Hub's tests have one of that name


@pytest.fixture
def evid(tmp_path):
    def run(*words, sites):
        """Run the command as a user does, with `sites` among the places where packages are installed."""
        around = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sites))}
        words = [sys.executable, "-m", "evidcore", *words]
        done = subprocess.run(words, cwd=tmp_path, env=around, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("folder", sorted(EXAMPLES.iterdir()), ids=lambda folder: folder.name)
def test_an_example_is_a_short_module(folder):
    (module,) = folder.glob("*.py")
    assert module.stem == f"evid_{folder.name.replace('-', '_')}"
    assert len(module.read_text().splitlines()) <= 150


def test_listing_names_it_and_runs_nothing_of_it(site, evid):
    listed = json.loads(evid("plugins", "reward", "--json", sites=[site]))["components"]
    (row,) = [row for row in listed if row["name"] == "laterality"]
    place = {"package": "evid-reward-laterality", "target": "evid_reward_laterality:Laterality"}
    assert row == {"kind": "reward", "name": "laterality", **place, "version": "1.0", "broken": None}
    assert not (site / IMPORTED).exists()


def test_it_keeps_the_contract_of_a_reward(site, tmp_path):
    reward = build("reward", {"use": "laterality", "silent": 0.25}, given={}, where="stage.grpo.reward[0]")
    assert (site / IMPORTED).exists()
    cases = [volume_case(tmp_path, seed) for seed in (0, 2)]  # right, left
    good = rollouts(cases, [["On the right."] * 2, ["On the LEFT side.", "left"]])
    bad = rollouts(cases, [["On the left.", "Nowhere."], ["Both left and right.", ""]])
    check_reward(reward, good, bad)
    values = [verdict.value for verdict in reward(bad, {})]
    assert values == [0.0, 0.25, 0.5, 0.25]
    unsided = dataclasses.replace(cases[0], report=None)
    assert reward(rollouts([unsided], [["left"]]), {}) == [None]


def rollouts(cases, answers):
    return [
        Rollout(
            prompt=Prompt(id=case.id, case=case, task="report", parts=(TextPart(text="?"),)),
            group=group,
            text=text,
            answer=Answer(text=text, report=text),
        )
        for group, (case, texts) in enumerate(zip(cases, answers, strict=True))
        for text in texts
    ]


@pytest.fixture
def broken_site(put_package, tmp_path):
    """Packages that are broken, each in its own way."""
    folder = tmp_path / "broken"
    for package, (body, table) in BROKEN.items():
        put_package(folder, package, table, "0.3", **{package.replace("-", "_"): body})
    return folder


def test_broken_packages_are_listed_with_their_reasons_and_hide_nobody(
    site, broken_site, put_package, evid, tmp_path
):
    put_package(tmp_path / "unreadable", "evid-unreadable", UNREADABLE)
    said = evid("plugins", "reward", sites=[site, broken_site, tmp_path / "unreadable"])
    assert "laterality" in said
    assert "broken: the entry point must read 'module:attribute', got 'just words'" in said
    assert "broken package evid-unreadable: entry_points.txt cannot be read" in said
    assert "libgrief" not in said  # that one shows when it is imported, which listing does not do

    listed = json.loads(evid("plugins", "reward", "--check", "--json", sites=[site, broken_site]))[
        "components"
    ]
    faults = {row["name"]: row["broken"] for row in listed}
    assert faults["laterality"] is None
    assert (
        "evid-cannot-import 0.3 could not be imported: ImportError: needs libgrief.so"
        in faults["cannot-import"]
    )
    assert "evid-no-such-class 0.3 could not be imported: AttributeError" in faults["no-such-class"]


RECIPE = recipe_text(
    {"kind": "grpo", "train": ["bridge"], "data": [{"dataset": "chest", "task": "report"}], "steps": 1,
     "prompts_per_step": 2, "answers_per_prompt": 2, "max_new_tokens": 4, "learning_rate": 1e-3,
     "reward": [{"use": "laterality", "silent": 0.25}]},
    name="laterality", dataset={"chest": {"use": "folder", "path": "."}},
    model={"language": {"folder": "language"},
           "encoder": {"use": "vit3d", "size_zyx": [8, 16, 16], "width": 24}},
)  # fmt: skip


@pytest.fixture
def recipe(tmp_path):
    """Four cases, a tiny language model, and a recipe that names the example's reward in one line."""
    rows = ["id,volume,patient,split,report"]
    for seed in range(4):
        case = volume_case(tmp_path, seed)
        rows.append(f"{case.id},{case.id}.nii.gz,{case.patient},train,{case.report.text}")
    (tmp_path / "cases.csv").write_text("\n".join(rows))
    tiny_language(tmp_path / "language")
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


@pytest.mark.slow
def test_one_line_of_a_recipe_trains_on_it(site, broken_site, recipe, evid, tmp_path):
    evid("run", recipe, sites=[site, broken_site])
    (metrics,) = tmp_path.glob("runs/laterality/2*/metrics.jsonl")
    (step,) = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert step["reward/laterality"] == pytest.approx(0.25)  # four random tokens name no side
    rollouts = [path.read_text() for path in tmp_path.glob("runs/laterality/stages/*/rollouts.jsonl")]
    assert "said [], the report says ['right']" in "".join(rollouts)
    assert "evid-reward-laterality" in (metrics.parent / "lock.toml").read_text()
