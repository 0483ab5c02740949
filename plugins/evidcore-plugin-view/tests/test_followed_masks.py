"""Boxes that a segmenter follows: the evaluation's own masks and figures, faults of segmenters, pixels."""

import dataclasses
import json
import shutil
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from browser_page import at_voxels
from evidcore_plugin_view.background import FollowedMask, FollowRequest, names_segmenter
from evidcore_plugin_view.opened_run import OpenedRun
from evidcore_plugin_view.question_scene import Reference, compose
from evidcore_testing.recipes import recipe_text
from pydantic import TypeAdapter

from evidcore.api import Answer, Answers, Box, Crop, Rollout
from evidcore.case import Evidence
from evidcore.data.masks import dice
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context

ASKED = {"data": [{"dataset": "abdomen", "task": "answer", "split": "test"}]}
TRAINED = {
    "data": [{"dataset": "abdomen", "task": "answer"}], "train": ["bridge", "language"], "steps": 1,
    "learning_rate": 1e-3,
}  # fmt: skip
SAMPLED = {"prompts_per_step": 1, "answers_per_prompt": 2, "max_new_tokens": 48}
GROWING = {"use": "region-growing", "reach": 0.0}
MEASURED = {"kind": "evaluate", **ASKED, "segmenter": "grower"}
ABDOMEN = {"use": "phantom-abdomen", "train_cases": 1, "validation_cases": 0, "size_zyx": [20, 48, 64]}


def recipe(*more, reward=None, growing="region-growing", test_cases=3, **services):
    """A recipe that evaluates before and after a step of GRPO, and then does more."""
    judged = [{"use": "key-slice"}, {"use": "volume-consistency"} | ({} if reward is None else reward)]
    grower = {"kind": "segmenter", "use": growing, "smoothing_steps": 2}
    return recipe_text(
        {"kind": "sft", **TRAINED, "rows_per_step": 1}, MEASURED,
        {"kind": "grpo", **TRAINED, **SAMPLED, "reward": judged}, MEASURED, *more, name="followed",
        task={"answer": {"use": "reasoning-segmentation", "think": False}},
        service={"grower": grower, **services}, dataset={"abdomen": {**ABDOMEN, "test_cases": test_cases}},
        model={"view": {"use": "slices", "slices": 20},
               "encoder": {"use": "vit3d", "size_zyx": [20, 48, 64], "patch_zyx": [1, 8, 8], "width": 24}},
    )  # fmt: skip


PINK = (255, 157, 230)  # masks of side B


def wider(box):  # as in the first evaluation
    return dataclasses.replace(box, y0=box.y0 - 2, y1=box.y1 + 2, x0=box.x0 - 2, x1=box.x1 + 2)


def said(boxes):
    evidence = Evidence(slice=boxes[0].z, boxes=tuple(boxes)) if boxes else None
    return Answer(text="here", evidence=evidence, malformed=None if boxes else "no box")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose answers were measured by the evaluation, and whose rollouts were judged by the reward."""
    folder = tmp_path_factory.mktemp("runs") / "followed" / "20261120-221504-3fa9c1"
    for name in ("answers", "rollouts", "results"):
        (folder / name).mkdir(parents=True)
    (folder / "resolved.toml").write_text(recipe(reward={"segmenter": GROWING}))
    (folder / "STATUS").write_text(json.dumps({"state": "finished", "stage": "", "step": 0, "message": ""}))
    assembly = Assembly(load(folder / "resolved.toml"))
    task, stages = assembly.tasks["answer"], assembly.recipe.stages
    for place, change in ((1, wider), (3, lambda box: box)):
        name = assembly.recipe.stage_name(place)
        (use,) = stages[place].data
        prompts = assembly.prompts(use)
        evaluation = stages[place].evaluation(use, Context(assembly, name))
        answers = [said([change(box) for box in gold(prompt, task)]) for prompt in prompts]
        answers[1] = said([])
        answers[2] = said([Box(z=3, y0=4, y1=9, x0=60, x1=70)])  # over the edge
        (scored,) = evaluation.score([Answers(prompts, answers)], task, "answer")
        write(folder / "answers" / f"{name}.jsonl", scored.lines())
    (use,) = stages[2].data
    prompt = assembly.prompts(use)[0]
    boxes = gold(prompt, task)
    pointed = ([wider(box) for box in boxes], [])
    rollouts = [Rollout(prompt=prompt, group=0, text="x", answer=said(some)) for some in pointed]
    context = Context(assembly, assembly.recipe.stage_name(2))
    verdicts = stages[2].rewards(context)[1].reward(rollouts, {})
    group = {
        "step": 1, "prompt_id": prompt.id, "case_id": prompt.case.id, "task": "answer", "prompt": "where?",
        "images": [crop.uri() for crop in prompt.crops()],
        "reference": {name: prompt.reference[name] for name in ("masks", "target")},
        "rollouts": [judged(*pair) for pair in zip(rollouts, verdicts, strict=True)],
    }  # fmt: skip
    write(folder / "rollouts" / "03-grpo.jsonl", [group])
    return folder


def gold(prompt, task):
    return task.parse(prompt, task.gold(prompt)[0]).evidence.boxes


def judged(rollout, verdict):
    evidence = rollout.answer.evidence
    return {
        "text": rollout.text, "total": verdict.value, "advantage": 0.0, "malformed": rollout.answer.malformed,
        "turns": [], "evidence": evidence and dataclasses.asdict(evidence),
        "rewards": {"volume-consistency": {"value": verdict.value, "reason": verdict.reason}},
    }  # fmt: skip


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def lines_of(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def server(run, serving):
    with serving(run) as server:
        yield server


@pytest.fixture(scope="module")
def followed(get):
    """Return a function that waits until the boxes of a line were followed."""

    def wait(server, line, overlay="a/followed/mask"):
        while get(server, "scene", a=line)[1]["waiting"]:
            time.sleep(0.1)
        while True:
            status, told = get(server, "followed", a=line, overlay=overlay)
            assert status == 200, told
            if not told["waiting"]:
                return told
            time.sleep(0.1)

    return wait


def held(server, line, side="a"):
    """The mask that was made for a line, and the whole scan."""
    routes = server.routes
    scene = routes._composed({"a": line})
    scan = routes._scan(scene)
    return routes.mask_of(scene.overlay(f"{side}/followed/mask"), scan), scan, scene


@pytest.mark.slow
def test_the_mask_of_an_answer_is_the_one_that_its_evaluation_measured(run, server, followed):
    scores = []
    for stage in ("02-evaluate", "04-evaluate"):
        lines = lines_of(run / "answers", stage)
        for number in (0, 3, len(lines) - 1):
            told = followed(server, f"a:answers:{stage}:{number}")
            assert told["fault"] == ""
            assert told["dsc"] == pytest.approx(lines[number]["figures"]["dsc"], abs=1e-12)
            assert told["legend"].startswith(
                "Made of the boxes by segmenter 'region-growing' from evidcore-plugin-segmenters 0.1.0, "
                f"as {stage} measures answers. DSC "
            )
            assert told["legend"].endswith(f"{told['dsc']:.3f} with {' + '.join(lines[number]['masks'])}.")
            scores.append(told["dsc"])
    assert len(set(scores)) == len(scores)  # each its own mask


@pytest.mark.slow
def test_boxes_that_the_segmenter_refuses_and_answers_without_boxes(run, server, followed, get):
    lines = lines_of(run / "answers", "04-evaluate")
    assert "must hold voxels of a slice" in lines[2]["refused"]
    told = followed(server, "a:answers:04-evaluate:2")
    assert told["fault"] == f"The segmenter refused the boxes: {lines[2]['refused']}"
    status, error = get(server, "extent", a="a:answers:04-evaluate:2", overlay="a/followed/mask")
    assert (status, error["error"]) == (400, told["fault"])
    overlays = [item["id"] for item in get(server, "scene", a="a:answers:04-evaluate:1")[1]["overlays"]]
    assert any(item.startswith("case/truth/") for item in overlays)
    assert "a/followed/mask" not in overlays


@pytest.mark.slow
def test_the_mask_of_a_rollout_is_the_one_that_its_reward_judged(run, server, followed):
    (group,) = lines_of(run / "rollouts", "03-grpo")
    told = followed(server, "a:rollouts:03-grpo:0:0")
    assert "which reward 'volume-consistency' of 03-grpo asks; it may judge fewer slices" in told["legend"]
    mask, scan, scene = held(server, "a:rollouts:03-grpo:0:0")
    truth = np.logical_or.reduce([scan.mask(ref) for ref in scene.target.values()])
    assert told["dsc"] == pytest.approx(dice(mask, truth))
    (reward,) = group["rollouts"][0]["rewards"].values()
    z = group["rollouts"][0]["evidence"]["slice"]
    window = slice(max(0, z - 5), z + 6)  # `delta`
    assert reward["value"] == pytest.approx(dice(mask[window], truth[window]))
    ids = [item.id for item in server.routes._composed({"a": "a:rollouts:03-grpo:0:1"}).overlays]
    assert "a/followed/mask" not in ids


@pytest.mark.slow
def test_a_mask_is_drawn_and_given_to_3d_as_any_other(run, server, followed, get):
    line = "a:answers:04-evaluate:0"
    followed(server, line)
    mask, scan, scene = held(server, line)
    status, seen = get(server, "extent", a=line, overlay="a/followed/mask")
    assert status == 200
    assert seen["axial"] == np.flatnonzero(mask.any(axis=(1, 2))).tolist()
    z = seen["fullest"]["axial"]
    assert z == int(mask.sum(axis=(1, 2)).argmax())
    query = {"a": line, "plane": "axial", "index": z, "overlays": "a/followed/mask"}
    assert get(server, "shapes", **query)[1]["a/followed/mask"]["fill"]
    assert get(server, "mask.nii", a=line, overlay="a/followed/mask") == (200, scan.nifti(mask))
    roles = list(dict.fromkeys(item.role for item in scene.overlays if item.asked))
    assert roles == ["truth", "predicted", "followed"]


PLANTED = tomllib.loads(Path(__file__).with_name("planted_segmenters.toml").read_text(encoding="utf-8"))
KINDS = ("raising", "halved", "missing", "dying", "waiting")


@pytest.fixture
def planted(run, tmp_path, monkeypatch):
    """The run with an evaluation by each segmenter of a package on disk, which other processes see too."""
    site, copy = tmp_path / "site", tmp_path / "followed" / run.name
    info = site / "evid_planted-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "evid_planted.py").write_text(PLANTED["module"])
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evid-planted\nVersion: 1.0\n")
    offers = "".join(f"{name} = evid_planted:{name.title()}\n" for name in (*KINDS, "fitted"))
    (info / "entry_points.txt").write_text(f"[evidcore.segmenter]\n{offers}")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("PLANTED_FOLDER", str(tmp_path))
    shutil.copytree(run, copy)
    stages = [{"kind": "evaluate", **ASKED, "segmenter": {"use": name}} for name in KINDS]
    stages.append({"kind": "fit", "component": "service.fitted", "data": [{"dataset": "abdomen"}]})
    stages.append({"kind": "evaluate", **ASKED, "segmenter": "fitted"})
    fitted = {"kind": "segmenter", "use": "fitted"}
    (copy / "resolved.toml").write_text(recipe(*stages, fitted=fitted))  # rewards name no segmenter
    (copy / "checkpoints/10-fit-fitted").mkdir(parents=True)
    (copy / "checkpoints/10-fit-fitted/depth").write_text("7")
    for stage in ("05", "06", "07", "08", "09", "11"):
        shutil.copy(copy / "answers/04-evaluate.jsonl", copy / f"answers/{stage}-evaluate.jsonl")
    shutil.copy(copy / "answers/04-evaluate.jsonl", copy / "answers/12-audit.jsonl")  # asked for later
    return copy


@pytest.mark.slow
def test_a_segmenter_that_fails_is_told_in_a_sentence_and_fitted_ones_go_on(planted, serve, followed):
    server = serve(planted)
    name = "segmenter '{}' from evid-planted 1.0"
    volume = Crop.parse_uri(lines_of(planted / "answers", "05-evaluate")[0]["images"][0]).volume
    numbered = enumerate(KINDS[:4], 5)
    said = {kind: followed(server, f"a:answers:{place:02d}-evaluate:0") for place, kind in numbered}
    assert said["raising"]["fault"] == (
        f"{name.format('raising')} failed while following boxes through {volume.path}: RuntimeError: the "
        "network has no such layer"
    )
    halved = "gave a mask of bool (10, 48, 64) for a volume of (20, 48, 64) (z, y, x)."
    assert said["halved"]["fault"] == f"{name.format('halved')}: {halved}"
    assert said["missing"]["fault"] == "planted.safetensors: not here. Fetch it: evid download planted."
    assert said["dying"]["fault"].startswith("The process of the segmenter ended with status -9, before")
    assert all(item["dsc"] is None and not item["waiting"] for item in said.values())
    assert followed(server, "a:answers:04-evaluate:0")["fault"] == ""  # in a new process
    lines = ("answers:11-evaluate:0", "answers:12-audit:0", "rollouts:03-grpo:0:0")  # rewards name none
    for line in lines:
        told = followed(server, f"a:{line}")
        assert "segmenter 'fitted' from evid-planted 1.0, as 11-evaluate measures answers." in told["legend"]
        mask, scan, scene = held(server, f"a:{line}")
        assert mask.any(axis=(1, 2)).sum() == 7  # its weights are those of the run
        truth = np.logical_or.reduce([scan.mask(ref) for ref in scene.target.values()])
        assert told["dsc"] == pytest.approx(dice(mask, truth))


@pytest.mark.slow
def test_a_slow_segmenter_blocks_nobody_and_the_last_asked_is_first(planted, serve, followed, get, tmp_path):
    server = serve(planted)
    numbers = [0, 3, 4, 5, 6, 7, 8]
    lines = [f"a:answers:09-evaluate:{number}" for number in numbers]
    for line in lines:
        while get(server, "scene", a=line)[1]["waiting"]:
            time.sleep(0.1)
    query = {"overlay": "a/followed/mask"}
    assert get(server, "followed", a=lines[0], **query)[1]["waiting"]
    while not (tmp_path / "asked").exists():
        time.sleep(0.1)
    for line in lines:
        assert get(server, "followed", a=line, **query)[1]["waiting"]
    assert get(server, "slice.png", a=lines[0], plane="axial", index=3, low=0, high=9)[0] == 200
    status, said = get(server, "mask.nii", a=lines[0], **query)
    assert (status, said["error"]) == (400, "a/followed/mask: its boxes are still followed. Ask again.")
    (tmp_path / "go").touch()
    while len((tmp_path / "asked").read_text().split()) < 5:
        time.sleep(0.1)
    assert followed(server, lines[3])["dsc"] is not None
    boxes = [lines_of(planted / "answers", "09-evaluate")[number]["boxes"] for number in numbers]
    firsts = [min(some, key=lambda box: (box["z"], box["y0"], box["x0"]))["x0"] for some in boxes]
    order = [int(text) for text in (tmp_path / "asked").read_text().split()]
    assert order == [firsts[0], *firsts[:2:-1]]  # four waited, and those before them were left


@pytest.mark.slow
def test_a_viewer_that_ends_ends_a_segmenter_that_works(planted, tmp_path):
    opened = OpenedRun(planted, show_reports=False)
    line = lines_of(planted / "answers", "09-evaluate")[0]
    image = Crop(volume=Crop.parse_uri(line["images"][0]).volume).uri()
    about = {"run": "a", "kind": "answers", "stage": "09-evaluate", "task": "answer", "image": image}
    about |= {"case": line["case_id"], "prompt": line["prompt_id"], "slice": line["slice"]}
    wanted = FollowRequest(**about, boxes=tuple(Box(**box) for box in line["boxes"]))
    assert opened.followed.get(wanted) is None
    while not (tmp_path / "asked").exists():
        time.sleep(0.1)
    opened.close()
    assert "ended with status -9" in opened.followed.get(wanted).fault


@pytest.mark.slow
def test_a_recipe_that_cannot_be_built_any_more_says_so(run, serve, followed, tmp_path):
    copy = tmp_path / "followed" / run.name
    shutil.copytree(run, copy)
    lines = lines_of(copy / "answers", "04-evaluate")
    server, last = serve(copy), len(lines) - 1
    for line in (0, last):
        while server.routes.answer("scene", {"a": f"a:answers:04-evaluate:{line}"})["waiting"]:
            time.sleep(0.1)
    (copy / "resolved.toml").write_text(recipe(growing="region-groing"))
    assert "Did you mean 'region-growing'?" in followed(server, "a:answers:04-evaluate:0")["fault"]
    (copy / "resolved.toml").write_text(recipe(test_cases=1))
    prompt, case = lines[last]["prompt_id"], lines[last]["case_id"]
    assert followed(server, f"a:answers:04-evaluate:{last}")["fault"] == (
        f"04-evaluate: task 'answer' asks no {prompt!r} of case {case!r} any more, so its boxes are not "
        "followed. Was the data set changed?"
    )


@pytest.mark.slow
def test_boxes_are_followed_through_the_cases_own_scan_alone(run, served, cases):
    opened = {"a": OpenedRun(run, show_reports=False)}
    try:
        lines = lines_of(run / "answers", "04-evaluate")
        other = next(line for line in lines if line["case_id"] != lines[0]["case_id"])
        moved = {**lines[0], "images": other["images"], "condition": "other-patient"}
        write(run / "answers" / "05-audit.jsonl", [lines[0], moved])
        references = [Reference.parse(f"a:answers:05-audit:{number}") for number in (0, 1)]
        opened["a"].look_up("answers", "05-audit", 0)
        while compose(opened, references[:1]).waiting:
            time.sleep(0.1)
        result = [[item.id for item in compose(opened, [item]).overlays] for item in references]
        assert ["a/followed/mask" in ids for ids in result] == [True, False]
        assert "a/predicted/box" in result[1]
    finally:
        (run / "answers" / "05-audit.jsonl").unlink()
        opened["a"].close()
    overlays = served.routes.answer("scene", {"a": "a:rollouts:03-grpo:0:0"})["overlays"]
    roles = {item["role"] for item in overlays}
    assert ("predicted" in roles, "followed" in roles) == (True, False)  # a run without a segmenter


@pytest.mark.parametrize(("recipe", "expected"), PLANTED["recipes"])
def test_whether_a_recipe_has_a_segmenter_is_read_without_building_one(recipe, expected):
    assert names_segmenter(recipe) == expected


@pytest.mark.parametrize("seed", range(4))
def test_a_mask_goes_from_process_to_process_unchanged(seed):
    rng = np.random.default_rng(seed)
    mask = np.zeros((7, 9, 11), dtype=bool)
    if seed:  # one holds no voxel
        mask[2:6, 1:8, seed:9] = rng.random((4, 7, 9 - seed)) > 0.6
    told = json.dumps(dataclasses.asdict(FollowedMask.of(mask, "it")))
    result = TypeAdapter(FollowedMask).validate_json(told, strict=True)
    assert (result.by, result.fault) == ("it", "")
    assert np.array_equal(result.mask(), mask)
    assert FollowedMask(fault="no").mask() is None


@pytest.mark.slow
def test_the_mask_lies_where_it_should_and_is_switched_by_itself(browser, server, run, followed, open_page):
    line = lines_of(run / "answers", "04-evaluate")[0]
    reader = open_page(browser, server)
    page = reader.page
    reader.ready()
    selector = ".switch.followed:has(input[data-overlay='{}/followed/mask'])"
    texts = [page.locator(selector.format(side)) for side in "ab"]
    for stage, text in zip(("02-evaluate", "04-evaluate"), texts, strict=True):
        text.locator(".legend:has-text('DSC')").wait_for(timeout=120_000)
        dsc = lines_of(run / "answers", stage)[0]["figures"]["dsc"]
        assert f"as {stage} measures answers. DSC {dsc:.3f} with {line['masks'][0]}" in text.inner_text()
    mask, _, _ = held(server, "a:answers:04-evaluate:0")
    switches = {side: page.locator(f'input[data-overlay="{side}/followed/mask"]') for side in "ab"}
    switches["a"].uncheck()
    for item in page.locator(".switch input").all():  # nothing but the mask of B
        if item.is_visible() and item.get_attribute("data-overlay") != "b/followed/mask":
            item.uncheck()
    page.click(".switch.followed:has(input[data-overlay='b/followed/mask']) button")
    z = int(mask.sum(axis=(1, 2)).argmax())
    reader.painted(z)
    with_mask = reader.colours()
    switches["b"].uncheck()
    without = reader.colours()
    changed = np.abs(with_mask - without).sum(axis=2) > 12
    grid = at_voxels(changed, mask.shape[1:])
    assert grid[mask[z]].mean() > 0.9
    assert grid[~mask[z]].mean() < 0.02
    clear = at_voxels(without, mask.shape[1:])[mask[z]]
    inside = at_voxels(with_mask, mask.shape[1:])[mask[z]] - clear
    expected = 0.22 * (np.array(PINK) - clear)
    assert np.abs(inside - expected).max() < 8
    switches["a"].check()
    assert (np.abs(reader.colours() - without).sum(axis=2) > 12).sum() > 20
