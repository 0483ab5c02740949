"""`evid view`: what it prints, and live runs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from evidcore_plugin_view.opened_run import OpenedRun

SERVED = """
import sys, threading
from evidcore_plugin_view.opened_run import OpenedRun
from evidcore_plugin_view.server import ViewServer
from pathlib import Path
server = ViewServer({"a": OpenedRun(Path(sys.argv[1]), show_reports=False)}, port=0)
server.routes.answer("runs", {})
server.routes.answer("rows", {"run": "a", "kind": "answers", "stage": "02-evaluate"})
print(sorted({"torch", "transformers", "trl", "monai", "evidcore.contracts"} & sys.modules.keys()))
"""


def test_it_prints_its_address_opens_it_unseen_serves_without_torch_and_ends_with_ctrl_c(looked, tmp_path):
    done = subprocess.run([sys.executable, "-c", SERVED, looked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    launched = tmp_path / "launched"
    opener = tmp_path / "xdg-open"  # it writes what other users can see, what they can do, and what it opens
    opener.write_text(
        f'#!/bin/sh\n{{ cat "/proc/$$/cmdline" "/proc/$$/environ" | tr "\\0" " "; echo; echo "$1"\n'
        f'stat -c %a "$1" "${{1%/*}}"; cat "$1"; }} > {launched}.part; mv {launched}.part {launched}\n'
    )
    opener.chmod(0o755)
    words = [sys.executable, "-m", "evidcore", "view", looked, "--port", "0", "--json"]
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=path) as process:
        address = json.loads(process.stdout.readline())["address"]
        while not launched.exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    seen, opened, *modes, page = launched.read_text().splitlines()
    assert process.returncode == 0
    assert address.startswith("http://127.0.0.1:")
    assert address.partition("#key=")[2] not in seen
    assert (modes, Path(opened).parent.exists()) == (["600", "700"], False)
    assert f'content="0; url={address}"' in page


@pytest.mark.slow
def test_a_real_run_is_described_with_its_stages_and_read_again_when_it_has_gone_on(copied_run):
    status = copied_run / "STATUS"
    run = OpenedRun(copied_run, show_reports=False)
    told = run.described()
    assert (told["state"], told["phantoms"]) == ("finished", ["chest"])
    assert told["real"] == told["rollouts"] == []
    stages = [(item["stage"], item["kind"]) for item in told["answers"]]
    assert stages == [("02-evaluate", "evaluate"), ("04-evaluate", "evaluate")]
    assert {row["condition"] for row in run.index("answers", "04-evaluate").rows()} == {"own"}
    status.write_text(json.dumps({"state": "running", "stage": "", "step": 1, "message": ""}))  # resumed
    rollout = {"text": "x", "total": 1.0, "rewards": {}}
    group = {"prompt_id": "p", "case_id": "c", "task": "t", "step": 1, "rollouts": [rollout]}
    path = copied_run / "rollouts" / "05-grpo.jsonl"
    path.write_text(json.dumps(group) + "\n")
    run.read_again()
    assert (run.described()["state"], run.described()["step"]) == ("running", 1)
    assert [item["stage"] for item in run.described()["rollouts"]] == ["05-grpo"]
    assert len(run.index("rollouts", "05-grpo").rows()) == 1
    with path.open("a") as file:
        file.write(json.dumps(group) + "\n")
    assert len(run.index("rollouts", "05-grpo").rows()) == 2
    status.write_text(json.dumps({"state": "failed", "stage": "05-grpo", "step": 2, "message": "no room"}))
    run.read_again()
    assert (run.described()["state"], run.described()["message"]) == ("failed", "no room")
