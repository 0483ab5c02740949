"""Audits of several runs in one table, from run folders whose figures are known."""

import json

import pytest


def audited(root, name, own, *, asked=("q0", "q1"), code="c0ffee"):
    """Write a run with an audit of two questions."""
    folder = root / "made" / name
    for inner in ("answers", "results"):
        (folder / inner).mkdir(parents=True)
    packages = f'[package.evidcore]\ncode = "{code}"\n[package.evidcore.components]\n"audit/policy" = "x"\n'
    packages += f'[package.encoder]\ncode = "{name}"\n[package.encoder.components]\n"encoder/x" = "x"\n'
    (folder / "lock.toml").write_text(f'{packages}[dataset.chest]\nfingerprint = "f00d"\n')
    (folder / "resolved.toml").write_text(f'schema = 1\nname = "{name}"\nseed = 17\n')
    (folder / "STATUS").write_text(json.dumps({"state": "finished"}))
    of_task = {"name": "choice", "low": 0.1, "high": 0.3, "unit": None}
    rows = [
        {"name": "own volumes", "metric": "accuracy", "value": own, "task": "choice", "condition": "own"},
        {"name": "own volumes", "metric": "accuracy", "value": 0.1, "task": "letter", "condition": "own"},
        {**of_task, "metric": "own_minus_blind", "value": 0.2},
        {**of_task, "metric": "other_patient_minus_blind_rule", "value": None, "low": None, "high": None},
    ]
    rows = [{**row, "headline": row["name"] == "own volumes"} for row in rows]
    told = {
        "stage": "02-audit",
        "kind": "audit",
        "rows": rows,
        "verdict": {"choice": "<b>The volume is used."},
    }
    (folder / "results" / "02-audit.json").write_text(json.dumps(told))
    lines = [{"task": "choice", "prompt_id": item, "case_id": "c", "text": "secret"} for item in asked]
    (folder / "answers" / "02-audit.jsonl").write_text("".join(json.dumps(item) + "\n" for item in lines))
    return folder


def test_audits_stand_side_by_side_with_what_pins_them(tmp_path, evid):
    one, two = audited(tmp_path, "one", 0.75), audited(tmp_path, "two", 0.5)
    (tmp_path / "made/three").mkdir()  # no run
    page = tmp_path / "audits.html"
    said = evid("audit", "ledger", tmp_path, "--out", page).stdout
    table = [" ".join(row.split()) for row in said.splitlines()]
    first = next(row for row in table if row.startswith(f"{one} choice"))
    assert first.startswith(f"{one} choice 75.0 % +20.0 (+10.0 to +30.0) - ")
    assert f"{two}, choice: <b>The volume is used." in table
    assert "note" not in said
    html = page.read_text()
    assert "&lt;b&gt;The volume is used." in html
    assert "<b>The volume" not in html
    assert "f00d" in html
    assert "secret" not in html
    audits = json.loads(evid("audit", "ledger", one, tmp_path, "--json").stdout)["audits"]
    assert [row["run"] for row in audits] == [str(one), str(two)]  # each once
    assert audits[0]["questions"] == audits[1]["questions"]
    assert audits[0]["figures"]["own"]["value"] == 0.75


def test_audits_of_other_questions_or_by_other_code_are_named(tmp_path, evid):
    audited(tmp_path, "one", 0.75)
    audited(tmp_path, "two", 0.5, asked=("q0",))
    audited(tmp_path, "three", 0.5, code="0ther")
    notes = evid("audit", "ledger", tmp_path).stdout.splitlines()[-2:]
    assert notes[0] == "note: 2 different questions: compare rows of the same hash alone."
    assert notes[1].startswith("note: 2 different code")


@pytest.mark.parametrize("words", [(), ("nowhere",)])
def test_no_audit_is_named(tmp_path, evid, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert "none of 0 runs has an audit" in evid("audit", "ledger", *words, exit_code=2).stderr
