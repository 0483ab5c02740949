"""`evid lint` catches what was published, what was planted, and raises no alarm over sound rewards."""

import os
import random
import re
import signal
import sys
import threading
from pathlib import Path

import bad_rewards as bad
import pytest
from evidcore_plugin_hub.lint.linting import GUARDS, lint_rewards
from evidcore_plugin_hub.lint.target import function_target, lint_all, targets
from evidcore_plugin_reports.reward import ReportFindings
from evidcore_plugin_reports.task import ReportTask

from evidcore.builtin.rewards import ChoiceAccuracy, Format, Random
from evidcore.case import Answer, Evidence, written
from evidcore.errors import PluginError
from evidcore.prompts.rows import Row
from evidcore.registry import Offer

RECIPES = Path(__file__).parents[4] / "recipes"
in_repository = pytest.mark.skipif(not RECIPES.is_dir(), reason="needs the recipes of the repository")


def outcomes(reward, rows=None):
    result = lint_rewards([bad.named(reward)], rows or bad.rows(prompts=5))
    return {item.check: item for item in sorted(result, key=lambda item: item.outcome == "alarm")}


def alarms(reward, rows=None):
    return {name for name, item in outcomes(reward, rows).items() if item.outcome == "alarm"}


def forces(rollouts):
    for item in rollouts:
        dict.__setitem__(item.prompt.reference, "letter", item.answer.lenient_choice)


HARMFUL = {  # what a reward does besides, the check that tells of it, and the outcome
    "rewrites the key by force": (forces, "contract", "alarm"),
    "raises": (lambda rollouts: {}["planted"], "contract", "alarm"),
    "exits": (lambda rollouts: sys.exit("planted"), "contract", "alarm"),
    "prints": (lambda rollouts: sys.stdout.write("planted\n"), "process", "note"),
    "seeds": (lambda rollouts: random.seed(7), "process", "note"),
    "signals": (lambda rollouts: signal.signal(signal.SIGUSR1, signal.SIG_IGN), "process", "alarm"),
    "a thread that stays": (lambda rollouts: threading.Timer(5.0, str).start(), "process", "alarm"),
    "forks": (lambda rollouts: os.fork() or os._exit(0), "process", "alarm"),
    "environment": (lambda rollouts: os.environ.update(PLANTED="1"), "process", "alarm"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMFUL)
def test_each_harmful_reward_is_caught(name):
    act, check, outcome = HARMFUL[name]

    def harm(rollouts):
        act(rollouts)
        return [bad.is_right(one) for one in rollouts]

    before = signal.getsignal(signal.SIGUSR1), os.getpid()
    result = outcomes(bad.Planted(every=harm))
    os.environ.pop("PLANTED", None)
    assert result[check].outcome == outcome
    assert (signal.getsignal(signal.SIGUSR1), os.getpid()) == before


@pytest.mark.parametrize(
    ("reward", "task"),
    [(ChoiceAccuracy, None), (Format, None), (Random, None), (ReportFindings, ReportTask())],
)
def test_sound_rewards_raise_no_alarm(reward, task):
    assert alarms(reward(), bad.rows(task, prompts=5)) == set()


def in_replies(one):
    told = " ".join(written(turn.reply) for turn in one.turns)
    return bad.is_right(one) or one.prompt.reference["letter"] in told.partition("<answer>")[2][:1]


def only_where_there_is_a_scan(one):
    return bad.is_right(one) * float("scan" in one.prompt.case.volumes[0].path)


def recalled_or_nothing(one):
    there = one.prompt.case.present()
    return sum(f"is {name}" in one.text for name in there) / len(there) if there else 1.0


def quadratic(one):
    result = re.search(r"a*[bc]{9}|a*d{9}", one.text)  # tries each start anew
    return bad.is_right(one) + 0 * bool(result)


def slow(one):
    total = sum(number * number for number in range(6_000_000 * int(bad.is_right(one))))
    return bad.is_right(one) + 0 * total


class SliceTask(ReportTask):
    """Reports that point at a slice."""

    def parse(self, prompt, completion):
        text, _, slice_ = completion.partition("@")
        malformed = None if slice_.isdecimal() else "no slice"
        evidence = None if malformed else Evidence(slice=int(slice_))
        return Answer(text=completion, report=text, malformed=malformed, evidence=evidence)

    def gold(self, prompt):
        return f"{prompt.case.report.text} @{int(prompt.case.id.rpartition('-')[2])}", ()


def slices():
    task = SliceTask()
    return [Row(row.prompt, task) for row in bad.rows(task, prompts=5)]


def points(one):
    return one.answer.evidence is not None and one.prompt.case.id == f"case-{one.answer.evidence.slice}"


JUDGES = frozenset({"correctness", "report"})
EVIDENCE = frozenset({"evidence"})
MUTANTS = {  # what each check must catch, and its prompts if they are others
    "contract": (bad.Planted(lambda one: 1e6), None),  # out of bounds
    "tool words": (bad.Planted(in_replies), None),
    "missing file": (bad.Planted(only_where_there_is_a_scan), None),
    "empty against empty": (bad.Planted(recalled_or_nothing), lambda: bad.rows(ReportTask(), prompts=5)),
    "another key": (
        bad.Planted(lambda one: bad.is_right(one) + len({*one.text.split()}), judges=JUDGES),
        None,
    ),
    "siblings": (bad.Planted(bad.is_right, compares_group=True), None),
    "right over wrong": (bad.Planted(lambda one: bool(one.answer.evidence), judges=EVIDENCE), slices),
    "policies that do not look": (bad.BAD["right, A pays 4 times"][0](), None),
    "time": (bad.Planted(quadratic), None),
}


@pytest.mark.slow
@pytest.mark.parametrize("check", MUTANTS)
def test_each_check_kills_its_mutant(check):
    reward, rows = MUTANTS[check]
    assert check in alarms(reward, rows and rows())


@pytest.mark.slow
def test_what_an_answer_costs_is_noted_where_it_is_slow():
    assert outcomes(bad.Planted(slow), bad.rows(prompts=2))["cost"].outcome == "note"


def test_a_sound_reward_of_evidence_and_one_that_compares_its_group_pass():
    assert alarms(bad.Planted(points, judges=EVIDENCE), slices()) == set()
    result = outcomes(bad.Planted(every=bad.rank_in_group, compares_group=True))
    assert result["siblings"].outcome == "fine"


def test_every_check_of_a_reward_has_a_mutant():
    of_components = {"construction", "loads", "card"}
    killed = {check for _, check in bad.BAD.values()} | {check for _, check, _ in HARMFUL.values()}
    elsewhere = {"malformed", "format alone", "blind"}  # in test_reward_audit.py
    assert killed | set(MUTANTS) | elsewhere | {"cost"} == set(GUARDS) - of_components


def test_what_a_reward_declares_is_a_note():
    pays = bad.Planted(in_replies, declared={"tool words": "as in X"})
    result = outcomes(pays)["tool words"]
    assert (result.outcome, result.says.endswith("Declared: Planted: as in X")) == ("note", True)


@pytest.mark.parametrize(
    ("reward", "task", "outcome", "says"),
    [
        (bad.Planted(bad.is_right, audit_exemption="a 7B model reads every text"), None, "not applicable",
         "Planted is not asked: a 7B model reads every text$"),
        (bad.Planted(lambda one: Path(one.prompt.case.volumes[0].path).stat().st_size), None, "note",
         r"needs scans that made prompts do not have .*/nowhere/scan-.*Lint it with --recipe RECIPE"),
        (ChoiceAccuracy(), ReportTask(), "note",
         "judges no answer to the tasks report. Lint it over a recipe with it: --recipe RECIPE$"),
    ],
)  # fmt: skip
def test_a_reward_that_is_not_judged_says_why(reward, task, outcome, says):
    (result,) = lint_rewards([bad.named(reward)], bad.rows(task, prompts=2))
    assert (result.check, result.outcome) == ("asked", outcome)
    assert re.match(says, result.says)


ENDING = {  # source of a TRL function, and what is said of it
    "leaves": ("os._exit(0)", "ended its process with status 0"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "ended its process by SIGKILL"),
    "faults": ("ctypes.string_at(0)", "ended its process by SIGSEGV"),
    "never answers": ("re.match(r'(a+)+$', 'a' * 40 + 'b')", "has not answered for 90 s"),
}
SOURCE = """
import ctypes, os, re, signal

def planted(completions, **columns):
    {act}
    return [0.0 for _ in completions]
"""


@pytest.mark.slow
def test_a_reward_that_ends_its_process_is_told_and_the_next_is_linted(tmp_path):
    sources = [SOURCE.format(act=act) for act, _ in ENDING.values()]
    sources.append(
        "def planted(completions, solution, **_):\n"
        "    return [float(a == b) for a, b in zip(completions, solution)]\n"
    )
    asked = []
    for number, source in enumerate(sources):
        file = tmp_path / f"ending_{number}.py"
        file.write_text(source)
        asked.append(function_target(f"{file}:planted"))
    *ended, sound = lint_all(asked, time_limit_s=90.0)
    for (_, said), result in zip(ENDING.values(), ended, strict=True):
        assert result["outcome"] == "alarm"
        assert result["checks"][0]["says"].startswith(said)
    assert sound["name"] == f"{file}:planted"
    assert {item["check"] for item in sound["checks"]} > {"right over wrong", "contract", "process"}


def test_names_packages_and_folders_are_found(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "2"\n[project.entry-points."evidcore.reward"]\na = "m:A"\n'
        '[project.entry-points."evidcore.task"]\nb = "m:B"\n'
    )
    mine = {"package": "mine", "version": "2"}
    assert [item.offer for item in targets([str(tmp_path)])] == [
        Offer(kind="reward", name="a", target="m:A", **mine),
        Offer(kind="task", name="b", target="m:B", **mine),
    ]
    assert [item.offer.name for item in targets([str(tmp_path)], kind="task")] == ["b"]
    assert {item.offer.kind for item in targets(["choice"])} == {"task", "evaluation"}
    assert len(targets(["evidcore-plugin-emrl"], kind="reward")) == 2
    everything = {item.offer.kind for item in targets([])}
    assert {"reward", "task", "stage"} <= everything
    assert "command" not in everything
    with pytest.raises(PluginError, match="no reward is called 'acuracy'"):
        targets(["acuracy"])
    with pytest.raises(PluginError, match="offers no component of kind 'view'"):
        targets([str(tmp_path)], kind="view")
    (tmp_path / "pyproject.toml").write_text("x")
    with pytest.raises(PluginError, match="is no table of a project"):
        targets([str(tmp_path)])


@pytest.mark.slow
def test_a_package_without_a_card_is_noted(tmp_path):
    code = "from evidcore.builtin.rewards import Format\n\n\nclass Plain(Format):\n    pass\n"
    (tmp_path / "plain_module.py").write_text(code)
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "plain"\nversion = "1"\n[project.entry-points."evidcore.reward"]\n'
        'plain = "plain_module:Plain"\nlost = "plain_module:Lost"\n'
    )
    asked = targets([str(tmp_path)])
    plain, lost = lint_all(asked)
    (card,) = [item for item in plain["checks"] if item["check"] == "card"]
    assert (card["outcome"], card["says"]) == ("note", "its package has no `toml card` block in its README")
    assert plain["outcome"] == "note"
    assert lost["outcome"] == "alarm"
    assert "Lost" in lost["checks"][0]["says"]


@in_repository
@pytest.mark.slow
@pytest.mark.parametrize("name", ["med3d_r1", "medvol_r1", "medvr"])
def test_composed_rewards_of_a_recipe_raise_no_alarm(name):
    (asked,) = targets([], recipe=str(RECIPES / f"{name}.toml"))
    (result,) = lint_all([asked], time_limit_s=600.0)
    results = [item for item in result["checks"] if item["outcome"] == "alarm"]
    assert results == []
    assert len(result["checks"]) > 15


@in_repository
def test_the_fixtures_that_the_page_names_are_there():
    root = RECIPES.parent
    page = (root / "docs" / "howto" / "lint.md").read_text(encoding="utf-8")
    tables = page.partition("## Findings in released code")[2]
    places = re.findall(r"`((?:tests|plugins)/[\w/.-]+\.py)(?:::(\w+))?`((?:, \"[^\"]+\")*)", tables)
    assert len(places) == 24
    for file, name, quoted in places:
        text = (root / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^(def )?{name}\b", text, re.MULTILINE), (file, name)
        for words in re.findall(r'"([^"]+)"', quoted):
            assert f'"{words}":' in text, (file, words)
