"""A model that is asked elsewhere, over files, is audited as the same model in this process."""

import gzip
import json
import os
import re
import tomllib
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from evidcore_plugin_audit.handout import Recorder
from evidcore_testing import tiny_vision_language
from evidcore_testing.recipes import recipe_text, stage_text

import evidcore
from evidcore.api import Case, DataError, Dataset, Finding, Prompt, TextPart, VolumeRef
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

NAMES = ("caudal rear", "caudal front", "cranial rear", "cranial front")
SHAPE = (12, 16, 16)  # z, y, x
ELSEWHERE = {
    "language": {"id": "nobody/none", "revision": "0"},
    "encoder": {"use": "published-vision"},
    "bridge": {"use": "published-tokens"},
}
RECIPE = recipe_text(
    {"kind": "audit", "data": [{"dataset": "boxes", "task": "choice", "split": "test"}], "max_new_tokens": 9},
    name="outside", seed=3, dataset={"boxes": {"use": "boxes"}},
    task={"choice": {"use": "choice", "think": False}}, model=ELSEWHERE,
)  # fmt: skip


class Boxes(Dataset):
    """Noise with a bright box in one quarter; the slice spacing tells which, too."""

    findings = NAMES

    def __init__(self, recipe_folder, *, float_voxels: bool = False) -> None:
        self.folder = recipe_folder / "scans-of-mueller"
        self.float_voxels = float_voxels

    def cases(self, split):
        first, count = {"train": (0, 12), "validation": (12, 4), "test": (16, 24)}[split]
        for number in range(first, first + count):
            states = ["present" if index == number % 4 else "absent" for index in range(4)]
            pairs = zip(NAMES, states, strict=True)
            yield Case(
                id=f"scan-{number}", patient=f"mueller-{number}",
                volumes=(self.written(f"mueller-{number}", number, number % 4),),
                findings=tuple(Finding(name=name, state=state) for name, state in pairs),
            )  # fmt: skip

    def without(self, case, finding):
        number = int(case.id.removeprefix("scan-"))
        shown = None if NAMES[number % 4] == finding else number % 4
        return (self.written(f"mueller-{number}-without", number, shown),)

    def written(self, name, number, shown):
        hu = np.random.default_rng(number).normal(0, 20, SHAPE)
        if shown is not None:
            top, front = divmod(shown, 2)
            # ours runs to posterior: the front comes first
            hu[3 + 6 * top :, ...][:3, (4 if front else 12) - 2 :, 6:10][:, :4] += 800
        path = self.folder / f"{name}.nii.gz"
        if not path.exists():
            self.folder.mkdir(exist_ok=True)
            is_float = self.float_voxels and number % 2
            values = hu.astype(np.float32) if is_float else hu.round().astype(np.int16)
            affine = np.diag([-1.0, -1.0, 2 + number % 4 / 2, 1.0])
            image = nib.Nifti1Image(values.transpose(2, 1, 0), affine)
            image.header["descrip"] = name.encode()
            nib.save(image, path)
        return VolumeRef(path=str(path))

    def fingerprint(self):
        return "boxes"


def option(text, name):
    """Return the answer that takes an option."""
    letter = re.search(rf"^([A-D])\) {name}$", text, re.MULTILINE)
    return f"<answer>{letter[1] if letter else 'A'}</answer>"


def by_the_box(array, text):
    """Answer by where the bright box is; y runs to posterior."""
    bright = np.argwhere(array > 400)
    if not len(bright):
        return "I see nothing."
    z, y, _ = bright.mean(0)
    return option(text, NAMES[2 * (z > 5.5) + (y < 7.5)])


def function_that_looks(questions):
    return [by_the_box(question.volumes[0].array, question.text) for question in questions]


def looks(folder, line):
    """Answer a line of questions.jsonl by the voxels."""
    image = nib.as_closest_canonical(nib.load(folder / line["volumes"][0]))
    return by_the_box(np.asarray(image.dataobj).T[:, ::-1], line["text"])


def reads_header(folder, line):
    """Answer a line of questions.jsonl by the slice spacing."""
    spacing = nib.load(folder / line["volumes"][0]).header.get_zooms()[2]
    return option(line["text"], NAMES[round(2 * (spacing - 2))])


@pytest.fixture
def recipe(offered, tmp_path):
    offered("evid-boxes", "[evidcore.dataset]\nboxes = evid_boxes:Boxes\n", Boxes=Boxes)
    path = tmp_path / "outside.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def prepared(recipe, evid, tmp_path):
    evid("audit", "prepare", recipe, "--out", tmp_path / "asked")
    return tmp_path / "asked"


def questions(prepared):
    lines = (prepared / "handout" / "questions.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def answered(prepared, how):
    folder, path = prepared / "handout", prepared.with_suffix(".jsonl")
    lines = [{"id": line["id"], "text": how(folder, line)} for line in questions(prepared)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def audit(recipe, prepared, evid, tmp_path):
    def audited(answers, *words, **more):
        given = ("--answers", answers, "--key", prepared / "key.json", "--out", tmp_path / "runs")
        return evid("audit", "policy", recipe, *given, *words, **more)

    return audited


@pytest.mark.slow
def test_a_model_that_reads_headers_is_not_taken_for_one_that_looks(prepared, audit):
    header = json.loads(audit(answered(prepared, reads_header), "--json").stdout)
    own = {row["condition"]: row["value"] for row in header["rows"] if row["metric"] == "strict_accuracy"}
    assert own["own"] == own["blank"] == own["twin"] == 1.0
    assert header["verdict"]["choice"].startswith("No sign that looking helps: ")


@pytest.mark.slow
def test_rows_are_those_of_the_same_policy_asked_in_this_process(recipe, prepared, audit, tmp_path):
    answers = answered(prepared, looks)
    looked = json.loads(audit(answers, "--json", "--fail-under", 20).stdout)
    assert looked["verdict"]["choice"].startswith("What is asked is seen: +")
    assert looked["asked"].startswith("answers of a file, sha256 ")
    direct = evidcore.audit_policy(function_that_looks, recipe, out=tmp_path / "direct")
    assert "audit of Python function function_that_looks" in direct.status["message"]
    assert direct.verdict == looked["verdict"]
    [run] = (tmp_path / "runs" / "outside").glob("*-*")
    for file in ("results/01-audit.json", "answers/01-audit.jsonl"):
        ours, theirs = ((folder / file).read_text() for folder in (run, direct.folder))
        assert ours.replace(looked["asked"], "Python function function_that_looks") == theirs
    conditions = set(direct.answers["condition"])
    assert conditions >= {"own", "blank", "scrambled", "other-patient", "perturbed", "twin", "matched"}
    right = direct.answers.groupby("condition")["correct"].mean()
    own = direct.results.query("condition == 'own' and metric == 'strict_accuracy'")
    assert own["value"].tolist() == [right["own"]]
    assert right["own"] > right["twin"]
    assert "What is asked is seen" in direct.page.read_text()
    # the gain's lower bound decides the exit status
    audit(answers, "--fail-under", "nan", exit_code=1)
    stderr = audit(answers, "--fail-under", 99, exit_code=1).stderr
    assert re.search(r"choice: .* does not look has the lower bound \+\d\d\.\d points; \+99\.0 is", stderr)


def test_nothing_that_is_handed_over_names_patient_condition_or_key(recipe, prepared):
    handout = prepared / "handout"
    files = [path for path in handout.rglob("*") if path.is_file()]
    assert {path.relative_to(prepared).parts[0] for path in prepared.rglob("*")} == {"handout", "key.json"}
    conditions = {
        item for question in json.loads((prepared / "key.json").read_text())["questions"].values()
        for item, _ in question["serves"]
    }  # fmt: skip
    assert conditions >= {"own", "blank", "scrambled", "other-patient", "perturbed", "twin", "matched"}
    words = {"mueller", "scan-", "boxes", str(recipe.parent), "key", *conditions}
    for path in files:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        held = {word for word in words if word.encode() in content or word in path.name}
        assert held == set(), path
    assert set(questions(prepared)[0]) == {"id", "text", "volumes", "max_new_tokens"}
    assert {line["max_new_tokens"] for line in questions(prepared)} == {9}


@pytest.mark.slow
@pytest.mark.parametrize("floats", [False, True])
def test_files_differ_in_nothing_but_voxels_and_grid(recipe, evid, tmp_path, floats):
    asked = tmp_path / "asked"
    override = f"dataset.boxes.float_voxels={str(floats).lower()}"
    evid("audit", "prepare", recipe, "--out", asked, "--set", override)
    headers, times, starts = set(), set(), set()
    for path in (asked / "handout" / "volumes").iterdir():
        header = nib.load(path).header
        for field in ("pixdim", "srow_z", "srow_x", "srow_y", "qoffset_z"):
            header[field] = 0
        headers.add(bytes(header.binaryblock))
        times.add(path.stat().st_mtime_ns)
        starts.add(path.read_bytes()[:10])
    assert (len(headers), len(times), len(starts)) == (1, 1, 1)


def test_own_voxels_are_on_their_grid_and_a_volume_is_written_once(recipe, prepared):
    key = json.loads((prepared / "key.json").read_text())
    lines = {line["id"]: line for line in questions(prepared)}
    own = {
        pair[1]: lines[opaque]["volumes"][0]
        for opaque, question in key["questions"].items()
        for pair in question["serves"] if pair[0] == "own"
    }  # fmt: skip
    case = next(iter(Assembly(load(recipe)).datasets["boxes"].cases("test")))
    name = next(file for prompt, file in own.items() if prompt.startswith(f"{case.id}:"))
    image, source = nib.load(prepared / "handout" / name), nib.load(case.volumes[0].path)
    assert np.array_equal(np.asarray(image.dataobj), np.asarray(source.dataobj))
    assert np.allclose(image.affine, source.affine)
    shown = {file for line in lines.values() for file in line["volumes"]}
    assert shown == {f"volumes/{path.name}" for path in (prepared / "handout" / "volumes").iterdir()}
    places = [next(iter(question["serves"]))[0] for question in key["questions"].values()]
    assert places != sorted(places)


@pytest.mark.slow
def test_equal_preparations_give_equal_files_and_others_have_other_ids(recipe, prepared, evid, tmp_path):
    evid("audit", "prepare", recipe, "--out", tmp_path / "again", "--key", tmp_path / "kept.json")
    assert not (tmp_path / "again" / "key.json").exists()
    assert (tmp_path / "kept.json").read_bytes() == (prepared / "key.json").read_bytes()
    for path in (prepared / "handout").rglob("*"):
        other = tmp_path / "again" / path.relative_to(prepared)
        assert path.is_dir() or path.read_bytes() == other.read_bytes()
    evid("audit", "prepare", recipe, "--out", tmp_path / "fewer", "--limit", 8)
    fewer, all_ = ({line["id"] for line in questions(item)} for item in (tmp_path / "fewer", prepared))
    assert fewer.isdisjoint(all_)  # other questions, other ids


def test_a_text_with_the_mark_of_a_volume_is_not_handed_over():
    prompt = Prompt(id="q0", case=None, task="choice", parts=(TextPart(text="<image>\nWhich?"),))
    with pytest.raises(
        DataError, match=r"prompt 'q0': its text holds '<image>', which stands where a volume"
    ):
        Recorder().generate([prompt], max_new_tokens=1)


def test_answers_that_are_not_of_the_key_are_refused_with_their_number(prepared, audit):
    path = answered(prepared, looks)
    lines = path.read_text().splitlines()
    total = len(lines)
    first = json.loads(lines[0])["id"]
    path.write_text("\n".join([*lines[:-2], lines[0], '{"id": "ffff", "text": ""}', '{"id": 3}', "[" * 9999]))
    said = audit(path, exit_code=2).stderr
    assert f"{total} questions were handed over" in said
    assert f"1 are answered more than once ({first})" in said
    assert "2 have no answer" in said
    assert "1 are not in the key: answers of another preparation (ffff)" in said
    assert f"2 are no answer: an object with an id and a text, both strings (line {total + 1}, line" in said
    assert "no such file" in audit(prepared / "none.jsonl", exit_code=2).stderr


@pytest.mark.parametrize("place", ["asked/key.json", "asked/../asked/kept/key.json", "new/folder/key.json"])
def test_the_key_is_put_where_it_is_told(recipe, evid, tmp_path, place):
    evid("audit", "prepare", recipe, "--out", tmp_path / "asked", "--key", tmp_path / place, "--limit", 4)
    assert json.loads((tmp_path / place).read_text())["limit"] == 4
    assert sorted(os.listdir(tmp_path / "asked" / "handout")) == ["questions.jsonl", "volumes"]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["a\u2028b", "a\x85b", "a\x0cb", "a\rb", "\udc80"])
def test_answers_may_hold_any_characters(prepared, audit, text):
    path = answered(prepared, looks)
    first, *rest = path.read_text().splitlines()
    line = json.dumps({**json.loads(first), "text": text}, ensure_ascii=text == "\udc80")
    path.write_text("\r\n".join([line, *rest, ""]), encoding="utf-8-sig", newline="")
    verdict = json.loads(audit(path, "--json").stdout)["verdict"]["choice"]
    assert verdict.startswith("What is asked is seen: +")


@pytest.mark.slow
def test_a_key_of_other_questions_is_refused(recipe, prepared, audit, tmp_path):
    answers = answered(prepared, looks)
    recipe.write_text(RECIPE.replace("seed = 3", "seed = 4"))
    said = audit(answers, exit_code=2).stderr
    assert re.search(r"of its \d+ questions [1-9]\d* are no longer asked, and [1-9]\d* are new", said)
    recipe.write_text(RECIPE.replace('name = "outside"', '# another comment\nname = "outside"'))
    audit(answers)
    key = json.loads((prepared / "key.json").read_text())
    hashed = {"questions": {name: {"hash": []} for name in key["questions"]}}
    for changed, error in ({"overrides": 3}, "Type"), ({"limit": 1e400}, "Overflow"), (hashed, "Type"):
        (prepared / "key.json").write_text(json.dumps({**key, **changed}))
        assert f"no key ({error}Error(" in audit(answers, exit_code=2).stderr
    (prepared / "key.json").write_text("{}")
    assert "no key (KeyError('preparation'))" in audit(answers, exit_code=2).stderr


@pytest.mark.parametrize(("words", "message"), TABLE["refused"])
def test_options_that_do_not_go_together_are_refused(recipe, evid, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    assert message in evid("audit", *words.split(), exit_code=2).stderr


def test_an_evaluation_that_needs_likelihoods_is_told_so(recipe, evid, offered, tmp_path):
    from evidcore.evaluate.choice import ChoiceEvaluation

    class Likely(ChoiceEvaluation):
        """Asks for likelihoods whatever is needed."""

        def answer(self, policy, prompts, task, asking):
            policy.log_likelihoods(prompts[:1], [["A"]])
            return super().answer(policy, prompts, task, asking)

    offered("evid-likely", "[evidcore.evaluation]\nlikely = evid_likely:Likely\n", Likely=Likely)
    recipe.write_text(RECIPE.replace('split = "test"', 'split = "test", evaluation = "likely"'))
    said = evid("audit", "prepare", recipe, "--out", tmp_path / "new", exit_code=2).stderr
    assert "asks how likely a completion is, and a file of answers does not say" in said
    assert not (tmp_path / "new").exists()


ASKED = [{"dataset": "boxes", "task": "choice", "split": "test", "limit": 3}]
PUBLISHED = stage_text(kind="audit", data=ASKED, conditions=[{"use": "blank"}], max_new_tokens=4)


def test_a_published_model_is_asked_in_place_of_the_recipes(recipe, evid, tmp_path):
    folder = tiny_vision_language(tmp_path / "qwen", "qwen3_vl")
    text = RECIPE.partition("[[stage]]")[0].replace('"volume"', '"slices", slices = 2')
    recipe.write_text(text.replace('"published-vision"', '"published-vision", size = 96') + PUBLISHED)
    words = ("audit", "policy", recipe, "--model", folder, "--out", tmp_path / "runs")
    result = json.loads(evid(*words, "--json").stdout)
    assert re.fullmatch(rf"model {folder}, weights [0-9a-f]{{16}}", result["asked"])
    assert {row["condition"] for row in result["rows"] if "condition" in row} == {"own", "blank"}
    assert str(folder) in (tmp_path / result["run"] / "resolved.toml").read_text()
    said = evid(*words, "--set", 'model.bridge={use="projection"}', exit_code=2).stderr
    assert f"model.bridge 'projection' takes no weights from {folder}, so it would be untrained" in said
    said = evid(*words, "--set", 'model.encoder={use="vit3d"}', exit_code=2).stderr
    assert "model.encoder 'vit3d' takes no weights" in said


@pytest.mark.slow
def test_the_folder_of_a_run_is_audited_like_the_run(small_run, copied_run, evid, tmp_path):
    model = max(small_run.glob("checkpoints/*-sft"))
    recipe = small_run / "resolved.toml"
    words = ("audit", "policy", recipe, "--model", model.resolve(), "--out", tmp_path / "runs")
    direct = json.loads(evid("audit", "policy", copied_run, "--json").stdout)
    outside = json.loads(evid(*words, "--json").stdout)
    assert outside["rows"] == direct["rows"]
    said = evid(*words, "--set", 'model.view={use="slices"}', exit_code=2).stderr
    assert "was trained in the view {'use': 'volume'}" in said
