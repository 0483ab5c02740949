import sys
from pathlib import Path

import pytest
from evidcore_testing.data import volume_case

from evidcore.case import Answer, Box, Evidence, Rollout, Score, Unscored
from evidcore.registry import factory

OFFERS = """
[evidcore.reward]
planted = planted_components:Planted
asking = planted_components:Asking
[evidcore.scorer]
planted-scorer = planted_components:PlantedScorer
[evidcore.reader]
planted-reader = planted_components:PlantedReader
"""


@pytest.fixture
def planted(offered, monkeypatch):
    """Install the components of planted_components.py as a package of their own."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    offered("planted-package", OFFERS, version="1.2")
    yield
    sys.modules.pop("planted_components", None)


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
