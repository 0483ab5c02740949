"""A run with answers and rollouts that point at things, on generated scans; its server; one browser."""

import contextlib
import http.client
import json
import shutil
import sys
import threading
import tomllib
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from evidcore_plugin_phantoms.testing import copied_run as copied_run
from evidcore_plugin_phantoms.testing import small_run as small_run
from evidcore_plugin_view import niivue
from evidcore_testing.fixtures import evid as evid
from evidcore_testing.recipes import phantoms, recipe_text

from evidcore.api import Crop, read, read_mask
from evidcore.cache import cache_folder
from evidcore.registry.factory import build

sys.path.insert(0, str(Path(__file__).parent))
from browser_page import Reader

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ASKED = [("chest", "choice"), ("abdomen", "point"), ("abdomen", "tell")]
TESTED = [{"dataset": dataset, "task": task, "split": "test"} for dataset, task in ASKED]
ABDOMEN = {"use": "phantom-abdomen", "train_cases": 1, "validation_cases": 0, "test_cases": 2}
RECIPE = recipe_text(
    {"kind": "sft", "data": [{"dataset": "chest", "task": "choice"}]}, {"kind": "evaluate", "data": TESTED},
    {"kind": "grpo", "data": [{"dataset": dataset, "task": task} for dataset, task in ASKED]},
    {"kind": "evaluate", "data": TESTED}, {"kind": "audit", "data": TESTED[:1]}, name="looked",
    dataset={"chest": phantoms(3, 0, 6, questions_per_finding=1), "abdomen": ABDOMEN},
)  # fmt: skip
LONG = 10_000_000
EVIL = "</script><img src=x onerror=\"document.title='broken'\"><b>bold</b>"


@pytest.fixture(scope="session")
def cases():
    """Generated cases by data set and split."""
    result = {}
    for name, table in tomllib.loads(RECIPE)["dataset"].items():
        dataset = build("dataset", table, given={"cache_folder": cache_folder()}, where=f"dataset.{name}")
        result[name] = {split: list(dataset.cases(split)) for split in ("train", "test")}
    return result


@pytest.fixture(scope="session")
def looked(tmp_path_factory, cases) -> Path:
    """The run: two evaluations of the same questions, and groups of rollouts between them."""
    folder = tmp_path_factory.mktemp("runs") / "looked" / "20261120-221504-3fa9c1"
    for name in ("answers", "rollouts", "results"):
        (folder / name).mkdir(parents=True)
    (folder / "resolved.toml").write_text(RECIPE)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "STATUS").write_text(json.dumps({"state": "finished", "stage": "", "step": 0, "message": ""}))
    rows = [{"name": "choice", "metric": "strict_accuracy", "value": 0.5, "headline": True}]
    for stage in ("02-evaluate", "04-evaluate"):
        result = {"stage": stage, "kind": "evaluate", "rows": rows}
        (folder / "results" / f"{stage}.json").write_text(json.dumps(result))
    chest = [case for case in cases["chest"]["test"] if case.present()]
    for stage in ("02-evaluate", "04-evaluate"):
        lines = [choice_line(case, stage, number) for number, case in enumerate(chest)]
        lines += [pointing_line(case, stage) for case in cases["abdomen"]["test"]]
        lines += [telling_line(case) for case in cases["abdomen"]["test"][:1]]
        write_lines(folder / "answers" / f"{stage}.jsonl", lines)
    groups = [group_line(case, step) for step, case in enumerate(cases["abdomen"]["train"] * 3, start=1)]
    groups.append(forked_line(cases["abdomen"]["train"][0], 4))
    write_lines(folder / "rollouts" / "03-grpo.jsonl", groups)
    audited = [choice_line(case, "05-audit", 9) for case in chest]
    lines = [{**line, "condition": name} for name in ("own", *AUDITED) for line in audited]
    write_lines(folder / "answers" / "05-audit.jsonl", lines)
    (folder / "results" / "05-audit.json").write_text(json.dumps(audit_result()))
    return folder


AUDITED = {  # what each showing scored, and how far own volumes are above it
    "twin": ("the same patients without what is asked", 0.30),
    "other-patient": ("another patient's volumes", 0.40),
    "blurred": ("own slices without what only a closer look shows", 0.55),
    "scrambled": ("own voxels in another order", 0.35),
    "blank": ("blank volumes", 0.25),
}


def audit_result():
    """The results of an audit: own volumes score 0.75, the best blind rule 0.45."""
    about = {"task": "choice", "metric": "strict_accuracy", "headline": True}
    levels = {"own": ("own volumes", 0.75), **AUDITED}
    rows = [
        {**about, "name": says, "condition": name, "value": value, "low": value - 0.1, "high": value + 0.1}
        for name, (says, value) in levels.items()
    ]
    rule = "the best blind rule (longest option)"
    above = [
        ("own_minus_blind", 0.3, "blind-rule", f"the best that does not look: {rule}"),
        *((f"own_minus_{name}", 0.75 - value, name, says) for name, (says, value) in AUDITED.items()),
        *((metric, 0.3, "blind-rule", rule) for metric in ("own_minus_rule", "own_minus_rule/lung nodule")),
    ]
    about = {"name": "choice", "of": "strict_accuracy"}
    rows += [
        {**about, "metric": metric, "value": value, "against": against, "note": f"own minus {says}"}
        for metric, value, against, says in above
    ]
    rows.append({"name": "choice", "metric": "prior_only", "value": 0.45, "low": 0.41, "high": 0.49})
    verdict = {"choice": "It looks: +30.0 points over the best blind rule."}
    return {"stage": "05-audit", "kind": "audit", "rows": rows, "verdict": verdict}


REPORT = (
    "No pancreatic cyst. Liver metastasis, 33 mm. "
    "There is a kidney cyst of 22 mm on the left. A gallstone is seen."
)


def telling_line(case):
    """A report that cites a slice for two of its findings: one where its mask is, one where it is not."""
    mask = read_mask(case.masks["liver metastasis"], read(case.volumes[0]))
    cited = {"liver metastasis": int(mask.sum(axis=(1, 2)).argmax()), "kidney cyst": 0}
    text = f"<report>{REPORT}</report><evidence>{json.dumps(cited)}</evidence>"
    return answer_of(
        case, "report", "tell", prompt="<image>Write the report.", text=text, slices=cited, figures={},
        value=0.5,
        affirmed=["gallstone", "kidney cyst", "liver metastasis"], present=list(case.present()),
        absent=["pancreatic cyst"], masks=list(case.present()),
        gold_slices={"liver metastasis": cited["liver metastasis"]},
    )  # fmt: skip


def forked_line(case, step):
    """A group of reports: the second leaves the first at token 20, the third the second at token 30."""
    line = group_line(case, step)
    cited = {"slice": None, "slices": {"liver metastasis": 5}, "boxes": [], "mask": None}
    for number, (rollout, parent) in enumerate(zip(line["rollouts"], (None, [0, 20], [1, 30]), strict=True)):
        text = f"<think>\N{LUNGS}</think><report>{REPORT}</report>"
        rollout |= {"text": text, "evidence": cited, "malformed": None, "turns": []}
        rollout |= {"parent": parent, "length": 40 + 10 * number}
    findings = {"present": ["liver metastasis"], "absent": ["pancreatic cyst"]}
    about = {"task": "tell", "prompt_id": f"{case.id}:report"}
    return {**line, **about, "reference": {**findings, "masks": list(case.present())}}


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def line_of(case, name, task, **fields):
    """What every line says of its question."""
    images = [Crop(volume=case.volumes[0]).uri()]
    return {"prompt_id": f"{case.id}:{name}", "case_id": case.id, "task": task, "images": images, **fields}


def answer_of(case, name, task, **fields):
    """What every answer says of its question."""
    about = {"patient": case.patient, "condition": "own", "malformed": None}
    return line_of(case, name, task, **about | fields)


def choice_line(case, stage, number):
    """One question; the first is right before GRPO and wrong after it, the second the other way round."""
    right = {0: stage == "02-evaluate", 1: stage == "04-evaluate"}.get(number, True)
    finding = case.present()[0]
    text = f"<think>The scan shows {finding}.</think><answer>{'A' if right else 'B'}</answer>"
    return answer_of(
        case, "0-0", "choice", prompt=f"<image>Which finding is present?\nA) {finding}\nB) nothing",
        text={2: EVIL, 3: "long " * (LONG // 5)}.get(number, text), finding=finding,
        malformed="no tags" if number in (2, 3) else None,
        choice="A" if right else "B", answer="A", correct=right, value=float(right),
    )  # fmt: skip


def target_of(case):
    """A mask of a case: its name, and its box on the slice that shows most of it."""
    name = sorted(case.masks)[0]
    mask = read_mask(case.masks[name], read(case.volumes[0]))
    z = int(mask.sum(axis=(1, 2)).argmax())
    y, x = np.flatnonzero(mask[z].any(axis=1)), np.flatnonzero(mask[z].any(axis=0))
    return name, {"z": z, "y0": int(y[0]), "y1": int(y[-1]) + 1, "x0": int(x[0]), "x1": int(x[-1]) + 1}


def pointing_line(case, stage):
    """An answer that boxes something: beside it before GRPO, on it afterwards."""
    name, box = target_of(case)
    off = 0 if stage == "04-evaluate" else 6
    said = {**box, "x0": box["x0"] + off, "x1": box["x1"] + off}
    dice = 0.9 if not off else 0.3
    return answer_of(
        case, name, "point", prompt=f"<image>Where is the {name}?", text=json.dumps(said), slice=box["z"],
        boxes=[said], gold_slice=box["z"], target=name, masks=[name], figures={"dsc": dice}, value=dice,
    )  # fmt: skip


def group_line(case, step):
    """A group of three rollouts: a good box, a malformed answer, and one that looked at a part first."""
    name, box = target_of(case)
    crop = Crop(volume=case.volumes[0])
    part = crop.cut((box["z"], box["z"] + 1, box["y0"] - 2, box["y1"] + 2, box["x0"] - 2, box["x1"] + 2))
    turn = {"text": "I zoom in.", "actions": [{"tool": "crop"}], "reply": "<image>", "crops": [part.uri()]}

    def rollout(total, advantage, text, turns=(), fault=None):
        verdict = {"value": total, "parts": {}, "reason": "IoU with the box", "unscored": None}
        return {
            "text": text, "total": total, "malformed": fault, "turns": list(turns), "parent": None,
            "evidence": None if fault else {"slice": box["z"], "slices": {}, "boxes": [box], "mask": None},
            "rewards": {"box-overlap": verdict}, "advantage": advantage, "tokens": 12, "length": 12,
        }  # fmt: skip

    is_dead = step == 2
    target = {"slice": box["z"], "areas": {}, "boxes": {str(box["z"]): [box]}}
    return line_of(
        case, name, "point", stage="03-grpo", step=step, prompt=f"<image>Where is the {name}?",
        reference={"query": f"the {name}", "masks": [name], "finding": name, "target": target},
        rollouts=[
            rollout(0.0 if is_dead else 1.0, 1.2, "Here it is."),
            rollout(0.0, -0.7, "<answer>", fault="no </answer>"),
            rollout(0.0 if is_dead else 0.4, -0.5, "After a look.", [turn]),
        ],
    )  # fmt: skip


@pytest.fixture(scope="session")
def serving():
    """Return a context that serves runs."""
    from evidcore_plugin_view.opened_run import OpenedRun
    from evidcore_plugin_view.server import ViewServer

    @contextlib.contextmanager
    def begin(*folders, show_reports=False):
        runs = [OpenedRun(folder, show_reports=show_reports) for folder in folders]
        with contextlib.ExitStack() as ends:
            for run in runs:
                ends.callback(run.close)
            server = ends.enter_context(ViewServer(dict(zip("ab", runs, strict=False)), port=0))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            ends.callback(server.shutdown)
            yield server

    return begin


@pytest.fixture(scope="session")
def served(looked, serving):
    """The server of the run, one for all tests that only read it: its data sets are asked once."""
    with serving(looked) as server:
        yield server


@pytest.fixture
def serve(serving):
    """Return a function that serves runs; their processes of some 600 MB each end with the test."""
    with contextlib.ExitStack() as ends:
        yield lambda *folders, **options: ends.enter_context(serving(*folders, **options))


@pytest.fixture(scope="session")
def asked():
    """Return a function that sends a bare request, with a key if one is given: (status, headers, body)."""

    def ask(server, path, key="", **headers):
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        shown = {"Authorization": f"Bearer {key}"} if key else {}
        line.request("GET", path, headers={"Host": f"127.0.0.1:{server.port}", **shown, **headers})
        answer = line.getresponse()
        body = answer.read()
        line.close()
        return answer.status, answer.headers, body

    return ask


@pytest.fixture(scope="session")
def get(asked):
    """Return a function that asks for a name with the key: it gives the status, and JSON or bytes."""

    def answer(server, name, **query):
        status, headers, body = asked(server, f"/api/{name}?{urlencode(query)}", server.key)
        return status, json.loads(body) if "json" in headers["Content-Type"] else body

    return answer


@pytest.fixture(scope="session")
def chromium():
    """A function that starts a browser without a window; skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browsers = []

        def start(*options):
            words = ["--no-sandbox", *options]
            browsers.append(started.chromium.launch(executable_path=CHROMIUM, args=words))
            return browsers[-1]

        yield start
        for item in browsers:
            item.close()


@pytest.fixture(scope="session")
def browser(chromium):
    """A browser with WebGL, computed without a GPU."""
    return chromium("--use-angle=swiftshader", "--enable-unsafe-swiftshader")


@pytest.fixture(scope="session")
def with_niivue():
    """Skip where NiiVue is not here and cannot be fetched."""
    try:
        niivue.fetch()
    except niivue.FetchError as error:
        pytest.skip(str(error))


@pytest.fixture
def open_page():
    """Return a function that opens a server's page; it checks in the end that nothing went wrong."""
    readers = []

    def start(browser, server, **options):
        readers.append(Reader(browser, server, **options))
        return readers[-1]

    yield start
    for reader in readers:
        reader.close()
