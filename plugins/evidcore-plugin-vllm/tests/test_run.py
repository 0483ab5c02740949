"""The committed recipe from one end to the other, through the command line."""

import json
import socket
from pathlib import Path

import pytest
from evidcore_testing.fixtures import evid as evid
from protocol_server import protocol_server

RECIPE = Path(__file__).parents[3] / "recipes" / "vllm.toml"


@pytest.mark.slow
def test_a_run_says_what_to_start_and_goes_on_with_it(evid, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    recipe = tmp_path / "vllm.toml"
    text = RECIPE.read_text().replace(":8000", f":{port}")
    recipe.write_text(text.replace("runs/served", f"{tmp_path}/served"))
    result = evid("run", recipe, "--out", tmp_path / "runs", exit_code=2)
    assert f"vLLM server http://127.0.0.1:{port}: /v1/models gave a broken connection" in result.stderr
    with protocol_server(tmp_path / "served", port=port) as server:
        [run] = {path.parent.resolve() for path in (tmp_path / "runs" / "vllm").glob("*/STATUS")}
        said = evid("resume", run).stderr
    assert "other inputs" not in said  # what lies in the folder of weights is no input
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "sampling_difference" in line]
    assert len(steps) == 2
    assert all(line["sampling_difference_most"] < 0.05 for line in steps)
    assert [path for path, _ in server.requests].count("/collective_rpc") == 2


@pytest.mark.slow
def test_a_rollout_that_reads_entropies_is_refused_by_check(evid, tmp_path):
    recipe = tmp_path / "vllm.toml"
    rollout = 'rollout = { use = "entropy-regrounding" }\ntools = [{ use = "zoom" }]\n'
    recipe.write_text(RECIPE.read_text().replace('kind = "grpo"\n', f'kind = "grpo"\n{rollout}'))
    said = evid("check", recipe, exit_code=2).stderr
    assert "sampler: 'vllm' does not fit: the rollout reads entropies of tokens" in said
