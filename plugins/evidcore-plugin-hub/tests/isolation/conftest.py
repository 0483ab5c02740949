import sys
from pathlib import Path

import pytest
from evidcore_testing.data import volume_case

from evidcore.case import Answer, Box, Evidence, Rollout, Score, Unscored
from evidcore.registry import factory

HERE = Path(__file__).parent


def offer_planted(folder, monkeypatch):
    """Install the components of planted.py as a package of their own."""
    (folder / "planted_apart.py").write_text((HERE / "planted.py").read_text())
    info = folder / "planted_package-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-package\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[evidcore.reward]\nplanted = planted_apart:Planted\nasking = planted_apart:Asking\n"
        "borrowing = planted_apart:Borrowing\n"
        "[evidcore.scorer]\nplanted-scorer = planted_apart:PlantedScorer\n"
        "[evidcore.reader]\nplanted-reader = planted_apart:PlantedReader\n"
    )
    monkeypatch.syspath_prepend(folder)


@pytest.fixture
def planted(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    offer_planted(folder, monkeypatch)
    yield
    sys.modules.pop("planted_apart", None)


@pytest.fixture(scope="session")
def rollouts(tmp_path_factory):
    """Two groups of three answers, as tasks read them."""
    task = factory.build("task", {"use": "choice"}, given={}, where="test")
    view = factory.build("view", {"use": "volume"}, given={}, where="test")
    cases = [volume_case(tmp_path_factory.mktemp("cases"), seed) for seed in range(2)]
    prompts = [task.prompts(case, view, 1)[0] for case in cases]
    evidence = Evidence(slice=3, boxes=(Box(z=3, y0=1, y1=4, x0=2, x1=6),))
    return tuple(
        Rollout(
            prompt=prompt, group=group, text=text, answer=Answer(text=text, choice=text, evidence=evidence)
        )
        for group, prompt in enumerate(prompts)
        for text in "ABC"
    )


@pytest.fixture(scope="session")
def earlier(rollouts):
    return {"first": tuple([Score(value=0.5, parts={"a": 1.0}), Unscored(kind="failed", reason="x")] * 3)}
