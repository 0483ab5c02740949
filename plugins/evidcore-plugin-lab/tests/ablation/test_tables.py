import json
from pathlib import Path

import pytest
from evidcore_plugin_lab.ablation.outcome import judged
from evidcore_plugin_lab.ablation.tables import LATEX, RESULT, SUMMARY, read, without_places, written

from evidcore.errors import RunError

METRIC = {"stage": "03-evaluate", "name": "choice_a", "metric": "strict_accuracy", "unit": None}
METRIC["label"] = "right & strict"
F1 = {"stage": "03-evaluate", "name": "report", "metric": "findings_f1_micro", "label": "", "unit": "score"}


def row(metric, value, low, high, **more):
    measured = {key: metric[key] for key in ("stage", "name", "metric", "unit")}
    spread = {"value": value, "low": low, "high": high, "note": "", "items": 90, "patients": 40}
    by_seed = {str(seed): value + (seed - 3) / 200 for seed in range(1, 6)}
    return {**measured, **spread, "by_seed": by_seed, **more}


FOUND = {
    "ablation": "gate", "about": "Gate, 50 % open", "command": "evid ablate gate_1.toml", "recipe": "r.toml",
    "phantoms": ["chest"], "seeds": [1, 2, 3, 4, 5], "intervals": "95 % intervals of a t",
    "overrides": ["stage.sft.steps=3"], "reference": "shut",
    "metrics": [METRIC, F1], "factors": {}, "arms": {"shut": [], "open|wide": ["model.bridge.gate=1"]},
    "rows": [
        row(METRIC, 0.4, 0.35, 0.45, arm="shut"), row(METRIC, 0.5, 0.45, 0.55, arm="open|wide"),
        row(F1, 0.123, None, None, arm="shut"), row(F1, 0.2, 0.1, 0.3, arm="open|wide"),
    ],
    "differences": [
        row(METRIC, 0.1, 0.02, 0.18, arm="open|wide", p_holm=0.0004, detectable=0.081),
        row(F1, 0.077, None, None, arm="open|wide", p_holm=None, detectable=None, note="too few patients"),
    ],
    "effects": [], "missing": ["shut/seed-6"], "accepted": [], "failed": [],
    "reference_lines": [
        {"line": "uniform_chance", **METRIC, "value": 0.25},
        {"line": "blind_grounded_accuracy", **METRIC, "value": 0.125},
    ],
    "cells": [{"arm": "shut", "seed": 1, "run": "x", "seconds": 90.0}],
    "made_with": {
        "packages": {"evidcore": "0.1.0"}, "versions": {"torch": "2.15.0"}, "hardware": {"cores": 2},
    },
}  # fmt: skip


def test_markdown_says_figures_in_their_units():
    text = written(FOUND)
    assert "Phantom numbers: `chest` holds generated scans, not patients." in text
    assert "| arm | right & strict, % | report, findings f1 micro |\n|---|---|---|\n" in text
    assert "| shut (reference) | 40.0 [35.0, 45.0] | 0.123 |" in text
    assert r"| open\|wide | 50.0 [45.0, 55.0] | 0.200 [0.100, 0.300] |" in text
    assert "| one option at random | 25.0 |  |" in text
    assert "| blind grounded accuracy | 12.5 |  |" in text
    assert "| +10.0 | +2.0 to +18.0 | +9.0 to +11.0 | *< 0.001 | 8.1 |" in text
    assert "| +0.077 | too few patients | +0.067 to +0.087 |  |  |" in text
    assert "- right & strict, %: after `03-evaluate`, 90 answers about 40 patients" in text
    assert "Not finished:\n\n- shut/seed-6\n" in text
    assert "evidcore 0.1.0, torch 2.15.0, on 2 CPU cores; 1 cell in 2 minutes." in text


def test_the_summary_is_made_to_be_quoted():
    effect = row(METRIC, -0.02, -0.05, 0.01, effect="gate: wide minus shut", p_holm=0.3, detectable=0.04)
    assert written({**FOUND, "effects": [effect]}, SUMMARY) == (
        "phantom numbers, Gate, 50 % open; means over seeds 1, 2, 3, 4, 5\n"
        "right & strict, %\n"
        "  shut                     40.0\n"
        "  open|wide                50.0  +10.0* (+2.0 to +18.0), below 8.1 would be missed\n"
        "  gate: wide minus shut          -2.0  (-5.0 to +1.0), below 4.0 would be missed\n"
        "report, findings f1 micro\n"
        "  shut                    0.123\n"
        "  open|wide               0.200  +0.077 (too few patients)\n"
        "differences from shut, 95 % intervals of a t; * where p after Holm is below 0.05\n"
        "not finished: shut/seed-6\n"
    )


@pytest.mark.parametrize(("seeds", "said"), [(1, "1 seed: no test"), (3, "3 seeds: no test")])
def test_under_five_seeds_nothing_has_a_star_whatever_the_file_holds(seeds, said):
    """Files of earlier versions hold p values of three seeds, and intervals that were drawn otherwise."""
    few = row(METRIC, 0.1, 0.02, 0.18, arm="open|wide", p_holm=0.0004, detectable=0.081)
    few["by_seed"] = {str(seed): 0.1 for seed in range(seeds)}
    result = {**FOUND, "seeds": list(range(seeds)), "differences": [few]}
    del result["intervals"]
    text, short = written(result), written(result, SUMMARY)
    assert f"| {said} | 8.1 |" in text
    assert f"{said}, so no star (at least 5)" in text
    assert f"{said}, so no star (at least 5)" in short
    assert "*" not in short
    assert "95 % percentile intervals over resampled seeds and patients, too narrow" in text


def test_latex_is_set_with_booktabs_and_escaped():
    text = written({**FOUND, "arms": {**FOUND["arms"], r"a_b\c{d}~^#$": []}}, LATEX)
    assert r"a\_b\textbackslash{}c\{d\}\textasciitilde{}\textasciicircum{}\#\$ & - & - \\" in text
    assert text.startswith("% made by `evid ablate gate_1.toml`")
    caption = r"\caption{Gate, 50 \% open: arms. Phantom numbers. Means over 5 seeds, 95 \% intervals of a t"
    assert caption in text
    assert r"arm & right \& strict, \% & report, findings f1 micro \\" in text
    assert r"open\textbar{}wide & 50.0 [45.0, 55.0] & 0.200 [0.100, 0.300] \\" in text
    assert r"\textless{} 0.001" in text
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 3
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 3
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    columns = [line for line in text.splitlines() if line.startswith(r"\begin{tabular}")]
    assert [len(line.split("{")[-1]) - 1 for line in columns] == [3, 7, 7]
    assert {line.replace(r"\&", "").count("&") for line in body} == {2, 6}


CLAIMS = [
    row(METRIC, 0.1, 0.02, 0.18, arm="open|wide", beats="shut", by=0.05, p_holm=0.2, verdict="not shown"),
    row(F1, 0.077, 0.05, 0.1, arm="open|wide", beats="shut", by=0.0, p_holm=0.001, verdict="supported"),
]


def test_claims_stand_with_their_verdicts():
    result = {**FOUND, "claims": CLAIMS}
    text = written(result)
    assert "| claim | metric | difference | 95 % interval | seeds | p (Holm) | verdict |" in text
    assert r"| open\|wide beats shut by more than 5.0 | right & strict, % | +10.0 | +2.0 to +18.0 |" in text
    assert "| +0.077 | +0.050 to +0.100 | +0.067 to +0.087 | *0.001 | supported |" in text
    said = written(result, SUMMARY)
    assert "claim: open|wide beats shut by more than 5.0, right & strict, %: not shown  +10.0 " in said
    assert "report, findings f1 micro: supported  +0.077* (+0.050 to +0.100)\n" in said


def claimed(value, by, p_value=0.01):
    return {"value": value, "by": by, "standard_error": 0.02, "degrees_of_freedom": 6.0, "p_value": p_value}


def test_a_claim_is_judged_by_how_far_the_difference_is_from_what_was_claimed():
    pairs = {(0.3, 0.2): "supported", (0.22, 0.2): "not shown", (0.1, 0.2): "contradicted"}
    pairs |= {(-0.1, 0.0): "contradicted"}
    result = judged([*(claimed(*pair) for pair in pairs), claimed(0.3, 0.2, None)])
    assert [row["verdict"] for row in result] == [*pairs.values(), "not shown"]
    assert result[1]["p_value"] == pytest.approx(0.356, abs=1e-3)  # of 0.02 at one standard error
    assert "p_holm" not in result[4]  # too few seeds


def test_claims_share_their_error():
    alone = judged([claimed(0.06, 0.0)])[0]
    together = judged([claimed(0.06, 0.0), *(claimed(0.001, 0.0) for _ in range(9))])[0]
    assert (alone["verdict"], together["verdict"]) == ("supported", "not shown")


def test_paths_below_the_root_are_relative_and_the_home_folder_is_a_tilde(tmp_path):
    text = f'a = "{tmp_path}/recipes/x.toml"\nb = "{tmp_path}"\nc = "/elsewhere/ct"\n'
    assert without_places(text, tmp_path) == 'a = "recipes/x.toml"\nb = "."\nc = "/elsewhere/ct"\n'
    text = f'a = "{Path.home()}/scans/ct"\nb = "{Path.home()}"\n'
    assert without_places(text, tmp_path) == 'a = "~/scans/ct"\nb = "~"\n'


OF_ANOTHER = row({**F1, "name": "other"}, 0.1, 0.0, 0.2, arm="shut", p_holm=None, detectable=None)
CHANGED = [
    ("arms", ["shut"]), ("seeds", 5), ("rows", [{}]), ("metrics", [{"name": 3}]), ("effects", "x"),
    ("rows", [row(METRIC, 0.4, "low", 0.45, arm="shut")]), ("differences", [OF_ANOTHER]),
    ("reference_lines", {"line": 1}), ("made_with", {"packages": 3}), ("claims", [{**OF_ANOTHER, "by": {}}]),
]  # fmt: skip
STRANGE = [json.dumps({**FOUND, name: value}).encode() for name, value in CHANGED]
STRANGE += [b"[1]", b"{", b"{}", b"[" * 100_000, b"null", b"\xff"]


@pytest.mark.parametrize("content", STRANGE)
def test_a_result_of_a_stranger_is_refused_by_name(tmp_path, content):
    (tmp_path / RESULT).write_bytes(content)
    with pytest.raises(RunError, match=r"ablation\.json: is not as evidcore writes it \(.*Give the folder"):
        read(tmp_path)
