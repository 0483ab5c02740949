"""Under FSDP2 each process writes answers as long as they come, and what is sharded stays so."""

import json
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("sharded_rollout_program.py")
CLOSE = 1e-5


@pytest.mark.slow
def test_processes_that_write_unequally_long_find_what_one_finds(language_folder, tmp_path, torchrun):
    torchrun(2, PROGRAM, language_folder, tmp_path)
    result = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    lengths = [[len(ids) for ids in item["ids"][0]] for item in result]
    assert max(lengths[1]) <= 3 < 24 <= max(lengths[0])
    assert len(lengths[0]) > len(lengths[1])
    for item in result:
        alone, sharded = item["ids"]
        assert sharded == alone
        for row, other in zip(*item["scores"], strict=True):
            assert other == pytest.approx(row, abs=CLOSE)
        assert item["loss"][1] == pytest.approx(item["loss"][0], abs=CLOSE)
        assert item["is_sharded"]
        assert item["gradient_off_by"] < CLOSE
