import sys
from pathlib import Path

import pytest
from evidcore_testing.fixtures import written as written
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))  # the planted policies
logging.disable_progress_bar()

# A report that repeats words, one that shares nothing, one empty, one word, one in another script.
PAIRS = (
    ("The lungs are clear. No nodule.", "The lungs are clear. There is a nodule of 5.5 mm."),
    ("nodule nodule nodule nodule", "There is a nodule in the left lung."),
    ("There is a nodule in the left lung.", "There is a nodule in the left lung."),
    ("Heart normal", "Aneurysma der Aorta, größer als 50 mm — “prall”"),
    ("größer als 50 mm", "Aneurysma der Aorta, größer als 50 mm — “prall”"),
    ("", "No pleural effusion is seen."),
    ("nodule", "nodule"),
    ("肺に 結節 あり", "左 肺に 結節 あり"),
)


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """Keep answers of endpoints apart, and ask them directly."""
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pairs():
    return PAIRS
