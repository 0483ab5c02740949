"""A package that somebody else wrote: installed by pip, listed without running, blamed when it is broken."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evidcore.case import Answer, Prompt, Rollout, TextPart
from evidcore.testing import check_reward, volume_case

EXAMPLE = Path(__file__).parents[1] / "examples" / "reward-laterality"
BROKEN = {
    "evid-cannot-import": ("raise ImportError('needs libgrief.so')", "evid_cannot_import:It"),
    "evid-no-such-class": ("", "evid_no_such_class:It"),
    "evid-not-a-target": ("", "just words"),
}


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Install the example as a user would, from a copy whose module leaves a mark when it runs."""
    copy, target = tmp_path_factory.mktemp("copy") / "it", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    module = copy / "evid_reward_laterality.py"
    module.write_text(f"{module.read_text()}\nopen({str(target / 'imported')!r}, 'w').close()\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", target, copy], check=True)
    return target


@pytest.fixture
def site(example, monkeypatch):
    (example / "imported").unlink(missing_ok=True)
    monkeypatch.syspath_prepend(example)
    return example


def put_broken(site, package):
    """Put a broken package beside the example; three ways in which a stranger's package may be."""
    body, target = BROKEN[package]
    module = package.replace("-", "_")
    info = site / f"{module}-0.3.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text(f"[evidcore.reward]\n{package[5:]} = {target}\n")
    (site / f"{module}.py").write_text(body)


def evid(*words, site):
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from evidcore.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)


def test_the_example_is_two_files():
    files = [path.name for path in EXAMPLE.iterdir() if path.is_file()]
    assert sorted(files) == ["evid_reward_laterality.py", "pyproject.toml"]


def test_listing_names_it_and_runs_nothing_of_it(site):
    done = evid("plugins", "--json", site=site)
    assert done.returncode == 0, done.stderr
    assert '"laterality"' in done.stdout
    assert '"evid-reward-laterality"' in done.stdout
    assert not (site / "imported").exists()


def test_it_keeps_the_contract_of_a_reward(site, tmp_path):
    from evidcore.factory import build

    reward = build("reward", {"use": "laterality", "silent": 0.25}, given={}, where="stage.grpo.reward[0]")
    assert (site / "imported").exists()
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


def test_an_option_out_of_bounds_is_named(site):
    from evidcore.errors import RecipeError
    from evidcore.factory import build

    with pytest.raises(
        RecipeError, match=r"stage.grpo.reward\[0\]\.silent: must be less than or equal to 1, got 2"
    ):
        build("reward", {"use": "laterality", "silent": 2}, given={}, where="stage.grpo.reward[0]")


@pytest.fixture
def broken_site(site, tmp_path, monkeypatch):
    """Broken packages beside the sound one."""
    for package in BROKEN:
        put_broken(tmp_path, package)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "cannot-import",
            r"reward 'cannot-import' from evid-cannot-import 0\.3 could not be imported: ImportError: needs",
        ),
        (
            "no-such-class",
            r"reward 'no-such-class' from evid-no-such-class 0\.3 could not be imported: AttributeError",
        ),
        ("not-a-target", r"reward 'not-a-target' from evid-not-a-target 0\.3"),
    ],
)
def test_a_broken_package_is_blamed_once_it_is_named_and_stops_nobody_before(name, reason, broken_site):
    from evidcore.errors import EvidError
    from evidcore.factory import build

    assert build("reward", {"use": "laterality"}, given={}, where="reward").silent == 0.0
    with pytest.raises(EvidError, match=reason):
        build("reward", {"use": name}, given={}, where="reward")


def test_what_shows_without_running_is_listed_as_the_reason(broken_site):
    from evidcore.plugins import offers

    faults = {offer.name: offer.fault() for offer in offers("reward") if offer.package.startswith("evid-")}
    assert faults["laterality"] is None
    assert faults["not-a-target"] == "the entry point must read 'module:attribute', got 'just words'"
