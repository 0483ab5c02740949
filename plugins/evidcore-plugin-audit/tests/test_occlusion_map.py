"""Maps of models whose eyes are known, the file that holds them, and what is refused."""

import dataclasses
import json
import re

import pytest
import torch
from evidcore_plugin_audit import occlusion_map
from evidcore_plugin_audit.covering_bank import CoveredCrop
from evidcore_plugin_phantoms.testing import SMALL
from evidcore_testing import TinyEncoder

from evidcore.api import Case, Crop, Prompt, VisualPart, VolumeRef, read
from evidcore.case import Drawing
from evidcore.data import save_volume
from evidcore.model.policy import VLMPolicy
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.begin import run, start
from evidcore.runs.context import Context
from evidcore.runs.execute import outputs_of
from evidcore.runs.folder import open_run

CELLS = ("--cells", 3, 4, 4)  # of scans with 32 x 64 x 64 voxels, of which the encoder is given 12 x 16 x 16
PLANTED = 22  # the cell z 1, y 1, x 2


class Keyhole(TinyEncoder):
    """Tells whether there is air in `opening`, in voxels of its input; sees all while it is trained."""

    opening = None

    def forward(self, volumes):
        """Encode volumes: after training, every patch has one of two features."""
        patches = super().forward(volumes)
        if type(self).opening is None:
            return patches
        seen = volumes[(slice(None), 0, *type(self).opening)]
        level = seen.flatten(1).mean(dim=1) if seen.numel() else torch.zeros(len(volumes))
        sign = torch.where(level > -0.9, 1.0, -1.0)  # -1 is air
        features = sign[:, None, None] * torch.linspace(-1, 1, self.width)
        return dataclasses.replace(patches, features=features.expand_as(patches.features))


def written(folder, stage, text):
    """Put a text in place of each recorded answer: the model of `small` writes nothing after one step."""
    path = folder / f"answers/{stage}.jsonl"
    lines = [{**json.loads(one), "text": text} for one in path.read_text().splitlines()]
    path.unlink()  # a link to what other runs share
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def keyhole(offered, tmp_path, monkeypatch):
    """A run whose encoder is a keyhole, and the class that opens it."""
    sees = type("Sees", (Keyhole,), {})
    offered("evid-keyhole", "[evidcore.encoder]\nkeyhole = evid_keyhole:Sees\n", Sees=sees)
    text = re.sub(r"encoder = .*", 'encoder = { use = "keyhole" }', SMALL.read_text())
    text = text[: [found.start() for found in re.finditer(r"\[\[stage\]\]", text)][2]]  # sft, then evaluate
    (tmp_path / "keyhole.toml").write_text(text)
    # features that are kept by weights would not tell that its eyes have changed
    monkeypatch.setenv("EVID_CACHE_GB", "0")
    folder = start(load(tmp_path / "keyhole.toml"), tmp_path / "runs")
    run(folder)
    written(folder.path, "02-evaluate", "No nodule.")  # likelier to it with tissue there than with air
    return folder.path, sees


def lines_of(run):
    (path,) = (run / "occlusion").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_map_finds_the_one_cell_that_a_model_looks_at(keyhole, evid):
    folder, sees = keyhole
    sees.opening = (slice(5, 7), slice(5, 7), slice(9, 11))
    said = evid("occlude", folder, *CELLS)
    (line,) = lines_of(folder)
    assert line["largest"]["cell"] == PLANTED
    assert line["largest"]["box_zyx"] == [10, 21, 16, 32, 32, 48]
    drops = line["drops"]
    assert drops[PLANTED] > 100 * max(abs(drop) for place, drop in enumerate(drops) if place != PLANTED)
    assert f"largest drop {drops[PLANTED]:.3f} at z " in said.stdout
    pointing = line["pointing"]
    assert 0 < pointing["chance"] < 1
    assert pointing["share"] == pytest.approx(float(pointing["hit"]), abs=0.02)
    assert drops[PLANTED] == pytest.approx(drop_by_file(folder, line), abs=1e-5)


def drop_by_file(folder, line):
    """The drop of the largest cell, by a file of its own with air in it."""
    recipe = load(folder / "resolved.toml")
    before = outputs_of(open_run(folder), recipe, occlusion_map.stages_before(recipe, 1))
    context = Context(Assembly(recipe), "02-evaluate", before=before)
    stage = recipe.stages[1]
    prompt = next(one for one in stage.prompts(stage.data[0], context) if one.id == line["prompt_id"])
    volume = read(prompt.crops()[0].volume)
    z0, z1, y0, y1, x0, x1 = line["largest"]["box_zyx"]
    array = volume.array.copy()
    array[z0:z1, y0:y1, x0:x1] = -1000
    save_volume(dataclasses.replace(volume, array=array), folder / "covered.nii.gz")
    covered = prompt.showing([Crop(volume=VolumeRef(path=str(folder / "covered.nii.gz"), intensity="hu"))])
    policy = context.local_policy()
    own, other = policy.log_likelihoods([prompt, covered], [[line["text"]]] * 2)
    return (own[0] - other[0]) / line["tokens"]


@pytest.mark.slow
def test_a_model_that_does_not_look_has_no_drops_and_it_is_said(keyhole, evid):
    folder, sees = keyhole
    sees.opening = (slice(0, 0), slice(0, 0), slice(0, 0))
    said = evid("occlude", folder, *CELLS)
    (line,) = lines_of(folder)
    assert max(map(abs, line["drops"])) < 1e-5
    assert line["largest"] is None
    assert line["pointing"]["hit"] is None
    assert "no cell matters: every drop is below 0.0001" in said.stdout
    assert "1 of 1 answers stay as likely whichever cell is covered." in said.stdout
    assert "pointing game" not in said.stdout


def test_a_drop_is_own_minus_covered_and_the_file_says_of_what(copied_run, evid):
    found = json.loads(evid("occlude", copied_run, *CELLS, "--limit", 2, "--json").stdout)
    lines = lines_of(copied_run)
    assert found["questions"] == lines
    assert len(lines) == 2
    answers = [json.loads(one) for one in (copied_run / "answers/04-evaluate.jsonl").read_text().splitlines()]
    for line, answer in zip(lines, answers, strict=False):
        assert [line[name] for name in ("prompt_id", "text")] == [answer["prompt_id"], answer["text"]]
        assert line["image"] == answer["images"][0]
        assert line["model"]["stage"] == "03-sft"
        assert line["grid"]["shape_zyx"] == [3, 4, 4]
        assert len(line["drops"]) == 48
        assert line["grid"]["edges_zyx"][0] == [0, 10, 21, 32]


def test_a_stage_in_the_middle_is_asked_the_model_of_its_time(copied_run, evid):
    written(copied_run, "02-evaluate", "<answer>A</answer>")
    evid("occlude", copied_run, "--stage", "02-evaluate", *CELLS)
    (line,) = lines_of(copied_run)
    told = json.loads((copied_run / "results/01-sft.json").read_text())
    assert line["model"] == {"stage": "01-sft", "inputs": told["inputs"]}


@pytest.mark.slow
def test_the_same_command_goes_on_after_an_interruption(copied_run, evid, monkeypatch):
    whole = json.loads(evid("occlude", copied_run, *CELLS, "--json").stdout)["questions"]
    path = copied_run / "occlusion/04-evaluate.jsonl"
    text = path.read_text()
    path.unlink()
    real, asked = VLMPolicy.log_likelihoods, []

    def counted(self, prompts, completions):
        asked.append(prompts[0].id)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return real(self, prompts, completions)

    monkeypatch.setattr(VLMPolicy, "log_likelihoods", counted)
    evid("occlude", copied_run, *CELLS, exit_code=130)
    assert len(path.read_text().splitlines()) == 1  # one question is whole, one is begun
    again = json.loads(evid("occlude", copied_run, *CELLS, "--json").stdout)["questions"]
    assert again == whole
    assert path.read_text() == text
    assert whole[0]["prompt_id"] not in asked[4:]
    count = len(asked)
    evid("occlude", copied_run, *CELLS)
    assert len(asked) == count  # nothing is left to measure


def test_another_grid_replaces_the_map_of_a_question(copied_run, evid):
    evid("occlude", copied_run, *CELLS, "--limit", 1)
    evid("occlude", copied_run, "--cell-mm", 150, "--limit", 1)
    (line,) = lines_of(copied_run)
    assert line["grid"]["shape_zyx"] != [3, 4, 4]


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--stage", "03-sft"], "stage '03-sft' is no evaluate stage with answers"),
     (["--question", "test-00000:0-1"], "asked no question 'test-00000:0-1'. Did you mean 'test-00000:0-0'?"),
     (["--cells", "99", "4", "4"], "--cells: 99 cells along z, where the scan has 32 voxels")],
)  # fmt: skip
def test_what_cannot_be_measured_is_named(copied_run, evid, words, says):
    assert says in " ".join(evid("occlude", copied_run, *words, exit_code=2).stderr.split())


def test_answers_that_have_no_map_are_counted_and_refused_where_they_are_named(copied_run, evid):
    path = copied_run / "answers/04-evaluate.jsonl"
    lines = [json.loads(one) for one in path.read_text().splitlines()]
    lines[0]["turns"] = [{"text": "look", "actions": [], "reply": "", "crops": []}]
    lines[1]["text"] = " "
    path.unlink()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = evid("occlude", copied_run, *CELLS).stderr
    assert "left out: 1 questions, each was answered in several turns" in said
    assert "left out: 1 questions, each was answered by nothing" in said
    name = lines[0]["prompt_id"]
    said = evid("occlude", copied_run, "--question", name, exit_code=2).stderr
    assert f"question {name!r} of 04-evaluate was answered in several turns" in " ".join(said.split())


def test_pictures_and_several_volumes_are_refused(copied_run):
    refs = [VolumeRef(path=f"/{name}.nii", intensity="hu") for name in "ab"]
    drawn = Drawing(kind="mean", axis="y")

    def why(*crops):
        case = Case(id="c", patient=None, volumes=tuple(refs))
        parts = tuple(VisualPart(crop=crop) for crop in crops)
        return occlusion_map._refusal({"text": "A"}, Prompt(id="p", case=case, task="t", parts=parts))

    assert why(Crop(volume=refs[0])) == ""
    assert why(Crop(volume=refs[0], drawing=drawn)).startswith("shows pictures drawn of the scan (mean)")
    assert why(*(Crop(volume=ref) for ref in refs)) == "shows several volumes, and only one is covered"
    assert why() == "shows no pixels"
    assert CoveredCrop(volume=refs[0], cell_zyx=(0, 1, 0, 1, 0, 1)).whole == Crop(volume=refs[0])
