from pathlib import Path

import pytest

TEXT = """\
schema = 1
name = "tiny"
seed = 17

[dataset.chest]
use = "phantom-chest"

[service.judge]
use = "findings-f1"

[task.direct]
use = "choice"
think = false

[model]
language = { use = "tiny" }
view = { use = "volume" }
encoder = { use = "vit3d" }
bridge = { use = "projection" }

[[stage]]
kind = "sft"
train = ["bridge", "language"]
data = [
  { dataset = "chest", task = "report" },
  { dataset = "chest", task = "direct", share = 0.5 },
]
steps = 4
learning_rate = 2e-3

[[stage]]
kind = "grpo"
train = ["bridge", "language"]
data = [{ dataset = "chest", task = "choice" }]
steps = 2
learning_rate = { bridge = 5e-4, language = 1e-4 }
[[stage.reward]]
use = "format"
weight = 0.5
[[stage.reward]]
use = "choice-accuracy"
gate = "format"

[[stage]]
kind = "evaluate"
data = [{ dataset = "chest", task = "choice", split = "test" }]
"""


@pytest.fixture
def text():
    return TEXT


@pytest.fixture
def write(tmp_path):
    """Return a function that writes the recipe with pieces replaced."""

    def put(*pairs: tuple[str, str]) -> Path:
        text = TEXT
        for old, new in pairs:
            assert old in text, old
            text = text.replace(old, new)
        path = tmp_path / "tiny.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return put
