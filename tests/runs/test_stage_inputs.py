"""What the hash by which a finished stage is used again covers: all that its numbers come from."""

import importlib.util
import json
from importlib import metadata
from pathlib import Path

import pytest
from evidcore_plugin_lab.ablation.cells import planned_inputs
from evidcore_testing.recipes import replaced, stage_text

from evidcore.data import content
from evidcore.recipe import load
from evidcore.runs import inputs
from evidcore.runs.assembly import Assembly
from evidcore.runs.inputs import hashed_inputs, inputs_hash

LOCK = {"dataset": {"chest": {"fingerprint": "f"}}}
CHANGED = [
    ("steps = 6\nprompts_per_step", "steps = 1\nprompts_per_step"),
    ('bridge = { use = "projection" }', 'bridge = { use = "residual-alignment" }'),
    ('kind = "sft"', 'kind = "sft"\nreweighter = { use = "abnormality" }'),
    ('use = "choice-accuracy"', 'use = "choice-accuracy"\n[[stage.reward]]\nuse = "report-consistency"\n'
     'texts = "released"\nscorer = { use = "token-f1" }'),
    ("limit = 6 }]", 'limit = 4 },\n  { dataset = "chest", task = "report", split = "test", limit = 4 }]\n'
     'metric = [{ use = "rouge-l" }]'),
]  # fmt: skip
AUDITED = [{"dataset": "chest", "task": "choice", "split": "test", "limit": 4}]
AUDIT = stage_text(kind="audit", data=AUDITED, max_new_tokens=8)


# what takes part in a stage and reaches its hash by another way than its file
COUNTED_ELSEWHERE = {
    # the language model is fitted to the number of image tokens, which stands among the stage's inputs
    "02-fit-language": {
        "evidcore_plugin_encoders.patch_centres",
        "evidcore_plugin_encoders.vit3d",
        "evidcore_plugin_med3d_r1.bridge",
    },
    # a format that looks at a mask: the one that reads it is in the data set's fingerprint
    "01-fit-encoder": {"evidcore_plugin_ct_data", "evidcore_plugin_ct_data.sparse_masks"},
}
ALL = "01 02 03 04 05 06"
EDITED = {  # the stages whose own inputs change, or that start from a stage whose inputs do
    "evidcore.proof.flow": ALL,
    "evidcore.train.trl.trainer": ALL,
    "evidcore_plugin_med3d_r1.reweighter": "03 04 05 06",
    "evidcore_plugin_phantoms.language.tiny": ALL,
    "evidcore_plugin_reports.word_overlap": ALL,  # phantoms are built on it
}


@pytest.fixture(scope="module")
def path(tmp_path_factory, recipe_text):
    file = tmp_path_factory.mktemp("inputs") / "tiny.toml"
    file.write_text(replaced(recipe_text + AUDIT, *CHANGED), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def took_part(path, warm):
    """The modules of the project that took part in each stage of a run."""
    said = path.with_name("took_part.json")
    program = warm(Path(__file__).with_name("traced_program.py"), path, said, folder=path.parent)
    out, err = program.communicate()
    assert program.returncode == 0, out + err
    return json.loads(said.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def assembly(path):
    return Assembly(load(path))


def hashes(assembly):
    return {name: inputs_hash(inputs) for name, inputs in planned_inputs(assembly, LOCK).items()}


@pytest.fixture(scope="module")
def counted(assembly):
    """The files whose content counts in the hash of each stage."""
    result = {}
    real = content._hash
    with pytest.MonkeyPatch.context() as patch:
        for index, stage in enumerate(assembly.recipe.stages):
            read = result[assembly.recipe.stage_name(index)] = set()
            patch.setattr(content, "_known", {})
            patch.setattr(content, "_hash", lambda place, read=read: read.add(Path(place)) or real(place))
            inputs.package_hash.cache_clear()
            hashed_inputs(assembly, stage, LOCK, {})
    inputs.package_hash.cache_clear()
    return result


def file_of(module):
    return Path(importlib.util.find_spec(module).origin)


@pytest.mark.slow
def test_every_file_that_takes_part_in_a_stage_counts_in_its_hash(took_part, counted):
    assert set(took_part) == set(counted)
    assert all(len(modules) > 20 for modules in took_part.values())
    watching = "evidcore_plugin_hub."  # asks before code is loaded, and judges rewards: changes no number
    missed = {
        stage: {
            name for name in modules if file_of(name) not in counted[stage] and not name.startswith(watching)
        }
        for stage, modules in took_part.items()
    }
    assert {stage: names for stage, names in missed.items() if names} == COUNTED_ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize(("module", "stages"), EDITED.items())
def test_an_edited_file_changes_the_stages_that_it_takes_part_in(assembly, monkeypatch, module, stages):
    before = hashes(assembly)
    real, edited = content._hash, file_of(module)
    monkeypatch.setattr(content, "_known", {})
    monkeypatch.setattr(content, "_hash", lambda place: real(place) + "e" * (Path(place) == edited))
    inputs.package_hash.cache_clear()
    after = hashes(assembly)
    inputs.package_hash.cache_clear()
    changed = {name.partition("-")[0] for name in before if before[name] != after[name]}
    assert changed >= set(stages.split())
    assert ("01" in changed) == ("01" in stages)  # a package's imports may count for more, not for all


@pytest.mark.slow
@pytest.mark.parametrize("package", [*inputs.VERSIONS, "python"])
def test_another_version_of_a_library_changes_every_stage(assembly, monkeypatch, package):
    before = hashes(assembly)
    installed(monkeypatch, package, "0.0.1")
    after = hashes(assembly)
    assert all(before[name] != after[name] for name in before)


def test_of_how_features_are_kept_the_precision_alone_counts_and_for_what_reads_them(path, assembly):
    before = hashes(assembly)
    assert hashes(Assembly(load(path, ["features.memory_gb=0"]))) == before
    rounded = hashes(Assembly(load(path, ["features.precision='float16'"])))
    changed = [name for name in before if before[name] != rounded[name]]
    assert changed == ["03-sft", "04-grpo", "05-evaluate", "06-audit"]


def test_another_version_of_what_a_package_requires_changes_stages_with_its_components(assembly, monkeypatch):
    before = hashes(assembly)
    installed(monkeypatch, "nltk", "0.0.1")
    after = hashes(assembly)
    assert [name[:2] for name in before if before[name] != after[name]] == ["02", "03", "04", "05", "06"]


def installed(monkeypatch, package, version):
    """Have a package stand there in another version."""
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name == package else real(name))
    if package == "python":
        monkeypatch.setattr(inputs.platform, "python_version", lambda: version)


ABDOMEN = '[dataset.other]\nuse = "phantom-abdomen"\n'


def test_findings_of_other_data_sets_count_where_a_labeler_may_look_for_them(path, assembly):
    other = path.with_name("other.toml")
    other.write_text(
        path.read_text(encoding="utf-8").replace("[model]", f"{ABDOMEN}\n[model]"), encoding="utf-8"
    )
    lock_ = {"dataset": {**LOCK["dataset"], "other": {"fingerprint": "g"}}}
    both = Assembly(load(other))
    assert not any("findings" in inputs for inputs in planned_inputs(assembly, LOCK).values())
    told = {name for name, inputs in planned_inputs(both, lock_).items() if "findings" in inputs}
    assert {"03-sft", "05-evaluate"} <= told
    assert "01-fit-encoder" not in told
    assert "gallstone" in planned_inputs(both, lock_)["05-evaluate"]["findings"]
