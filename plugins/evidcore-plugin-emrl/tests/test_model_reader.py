"""Reader `model-reader`: a model of evidcore's and a published one, asked about slices."""

import shutil

import pytest
from disc_cases import SHAPE, disc_case
from evidcore_plugin_emrl.model_reader import ModelReader, PolicyReader
from evidcore_testing import check_reader
from evidcore_testing.checks_evaluation import Says
from evidcore_testing.models import tiny_language, tiny_vision_language

from evidcore.api import Crop, DataError
from evidcore.contracts import ImageQuestion
from evidcore.errors import NotDownloadedError
from evidcore.model.assemble import assemble, save
from evidcore.model.language import Pretrained
from evidcore.model.parts import build_encoder
from evidcore.model.policy import VLMPolicy

NATIVE = {"use": "published-vision", "size": 96, "slices": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a model of evidcore's, `own`, and a published one, `published`."""
    root = tmp_path_factory.mktemp("models")
    language, tokenizer = Pretrained(folder=str(tiny_language(root / "language"))).load()
    encoder = {"use": "vit3d", "size_zyx": [1, 32, 48], "patch_zyx": [1, 8, 8], "width": 24}
    model, processor = assemble(
        language, tokenizer, build_encoder(encoder, None),
        encoder_table=encoder, bridge_table={"use": "projection"}, view_table={"use": "slices"},
    )  # fmt: skip
    save(model, processor, root / "own")
    tiny_vision_language(root / "published", "qwen3_vl")
    return root


@pytest.fixture
def questions(tmp_path):
    case = disc_case(tmp_path / "cases", 1, ["cyst"])
    crops = [Crop(volume=case.volumes[0], box_zyx=(z, z + 1, 0, SHAPE[1], 0, SHAPE[2])) for z in (1, 4)]
    return [
        ImageQuestion(crops=(crops[0],), text="What is seen?"),
        ImageQuestion(crops=tuple(crops), text="What is seen?"),
        ImageQuestion(crops=(), text="What is seen?"),
    ]


@pytest.mark.parametrize("table", [{"folder": "own"}, {"folder": "published", "encoder": NATIVE}])
def test_models_keep_the_contract(models, questions, tmp_path, table):
    check_reader(ModelReader(models, **table, max_new_tokens=6), questions, tmp_path / "alone")


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_a_configuration_that_cannot_be_read_is_named(models, questions, tmp_path, text):
    folder = shutil.copytree(models / "own", tmp_path / "broken")
    (folder / "config.json").write_text(text)
    with pytest.raises(DataError, match=r"broken' holds no model that can be read .* Name a folder that"):
        ModelReader(tmp_path, folder="broken")(questions)


def test_the_policy_itself_keeps_the_contract(questions, tmp_path):
    policy = Says(lambda prompt: "There is a cyst." if prompt.crops() else "")
    check_reader(PolicyReader(policy, policy), questions, tmp_path / "alone")


def test_it_is_asked_greedily_and_equal_questions_once(models, questions, monkeypatch):
    asked = []
    generate = VLMPolicy.generate

    def heard(self, prompts, **options):
        asked.append(([prompt.written() for prompt in prompts], options))
        return generate(self, prompts, **options)

    monkeypatch.setattr(VLMPolicy, "generate", heard)
    reader = ModelReader(models, folder="own", instruction="Answer in a sentence.", max_new_tokens=4)
    answers = reader([questions[0], questions[1], questions[0]])
    assert answers[0] == answers[2]
    text = "What is seen?\nAnswer in a sentence."
    assert asked == [([f"<image>{text}", f"<image><image>{text}"], {"max_new_tokens": 4})]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "must have exactly one of id and folder, got none"),
        ({"folder": "a", "id": "b/c", "revision": "d"}, "must have exactly one .*, got id and folder"),
        ({"id": "b/c"}, "revision is missing: without a commit"),
    ],
)
def test_a_model_that_is_not_named_well_is_refused(options, said):
    with pytest.raises(ValueError, match=f"model-reader: {said}"):
        ModelReader(**options)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"folder": "nothing"}, DataError, r"model-reader: .*nothing' holds no config.json"),
        ({"id": "a/b", "revision": "0" * 40}, NotDownloadedError, r"`hf download a/b --revision 0+`"),
    ],
)
def test_a_model_that_is_not_there_is_not_ready(tmp_path, options, error, said):
    with pytest.raises(error, match=said):
        ModelReader(tmp_path, **options).ready()
