from pathlib import Path

import pytest
from evidcore_testing.recipes import recipe_text, replaced

CHOICE = {"dataset": "chest", "task": "choice"}
TEXT = recipe_text(
    {"kind": "sft", "train": ["bridge", "language"],
     "data": [{"dataset": "chest", "task": "report"},
              {"dataset": "chest", "task": "direct", "sampling_weight": 0.5}], "steps": 4,
     "learning_rate": 2e-3},
    {"kind": "grpo", "train": ["bridge", "language"], "data": [CHOICE], "steps": 2,
     "learning_rate": {"bridge": 5e-4, "language": 1e-4},
     "reward": [{"use": "format", "weight": 0.5}, {"use": "choice-accuracy", "gate": "format"}]},
    {"kind": "evaluate", "data": [{**CHOICE, "split": "test"}]}, service={"judge": {"use": "findings-f1"}},
    task={"direct": {"use": "choice", "think": False}},
    model={"language": {"use": "tiny"}, "encoder": {"use": "vit3d"}},
)  # fmt: skip


@pytest.fixture
def write(tmp_path):
    """Return a function that writes the recipe with pieces replaced."""

    def put(*pairs: tuple[str, str]) -> Path:
        path = tmp_path / "tiny.toml"
        path.write_text(replaced(TEXT, *pairs), encoding="utf-8")
        return path

    return put
