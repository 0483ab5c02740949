"""Readers with weights of their own in a process of their own: they say what they say in the run."""

import pytest
from disc_cases import SHAPE
from evidcore_plugin_emrl.reader_fit import ReaderFit
from evidcore_plugin_emrl.report_evidence import ReportEvidence
from evidcore_plugin_emrl.slice_reader import SliceReader
from evidcore_testing.models import tiny_language, tiny_vision_language

from evidcore.api import Crop, DataError, Rollout
from evidcore.builtin.views import Slices
from evidcore.contracts import ImageQuestion
from evidcore.model.assemble import assemble, save
from evidcore.model.language import Pretrained
from evidcore.model.parts import build_encoder
from evidcore.registry import factory

NETWORK = {"size_yx": (32, 48), "channels": (12, 24), "windows": ((-50.0, 150.0),)}
ENCODER = {"use": "vit3d", "size_zyx": [1, 32, 48], "patch_zyx": [1, 8, 8], "width": 24}
NATIVE = {"use": "native-vision", "size": 96, "slices": 1}
TABLES = {
    "fitted": {"use": "slice-reader", "pretrained": "fitted", **NETWORK},
    "a model of one's own": {"use": "model-reader", "folder": "own", "max_new_tokens": 6},
    "a published model": {
        "use": "model-reader", "folder": "published", "encoder": NATIVE, "max_new_tokens": 6,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def recipe_folder(discs, tmp_path_factory):
    """A folder with the weights that the tables name."""
    root = tmp_path_factory.mktemp("recipe")
    (root / "fitted").mkdir()
    SliceReader(**NETWORK).fit(
        discs[:50], discs[50:], root / "fitted", 3, lambda figures: None, options=ReaderFit(steps=150)
    )
    language, tokenizer = Pretrained(folder=str(tiny_language(root / "language"))).load()
    model, processor = assemble(
        language, tokenizer, build_encoder(ENCODER, None),
        encoder_table=ENCODER, bridge_table={"use": "projection"}, view_table={"use": "slices"},
    )  # fmt: skip
    save(model, processor, root / "own")
    tiny_vision_language(root / "published", "qwen3_vl")
    return root


@pytest.fixture
def build(recipe_folder, discs, tmp_path):
    def built(kind, table):
        given = {"recipe_folder": recipe_folder, "cache_folder": tmp_path, "cases": lambda: discs}
        return factory.build(kind, table, given=given, where="test")

    return built


@pytest.fixture
def questions(discs):
    crops = [
        Crop(volume=case.volumes[0], box_zyx=(z, z + 1, 0, SHAPE[1], 0, SHAPE[2]))
        for case in discs[50:54]
        for z in (1, 4)
    ]
    asked = [ImageQuestion(crops=(crop,), text="Which findings are seen?") for crop in crops]
    return [*asked, ImageQuestion(crops=(), text="Which findings are seen?")]


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_it_says_what_it_says_in_the_run(name, build, questions):
    own, apart = (build("reader", {**TABLES[name], "isolated": value}) for value in (False, True))
    for reader in (own, apart):
        reader.ready()
    told = list(own(questions))
    assert apart(questions) == told
    assert apart(questions[3:5]) == told[3:5]
    assert len(set(told)) > 1


@pytest.mark.slow
def test_a_reward_and_its_reader_pay_what_they_pay_in_the_run(build, discs, tmp_path):
    view, task = Slices(slices=SHAPE[0]), ReportEvidence(tmp_path)
    rollouts = []
    for group, case in enumerate(discs[50:58]):
        (prompt,) = task.prompts(case, view, 0)
        for z in range(0, SHAPE[0], 2):
            text = f'<report>There is a cyst.</report><evidence>{{"slice": {z}}}</evidence>'
            answer = task.parse(prompt, text)
            rollouts.append(Rollout(prompt=prompt, group=group, text=text, answer=answer))
    table = {"use": "cross-view", "reader": TABLES["fitted"]}
    own, apart = (build("reward", {**table, "isolated": value}) for value in (False, True))
    paid = [repr(item) for item in own(rollouts, {})]
    assert [repr(item) for item in apart(rollouts, {})] == paid
    assert len(set(paid)) > 2


@pytest.mark.slow
def test_weights_that_are_not_there_are_named_before_anything_is_asked(build):
    with pytest.raises(DataError, match=r"holds no config\.json"):
        build("reader", {**TABLES["a model of one's own"], "folder": "nothing", "isolated": True}).ready()
