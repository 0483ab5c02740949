"""A run's model as a folder: transformers loads it, it says where it comes from, nothing private is in it."""

import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import timm
import torch
import yaml
from evidcore_plugin_encoders.testing import seeing_vlm
from evidcore_plugin_hub.export import as_published, export_run, widen
from evidcore_plugin_hub.redaction import WITHHELD
from evidcore_plugin_pages.jinja import NOTICE
from evidcore_plugin_pages.markup import DASH
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS
from evidcore_testing import tiny_language, tiny_vision_language
from safetensors.torch import save_file
from transformers import AutoModel, AutoModelForImageTextToText, AutoProcessor

from evidcore.errors import RunError
from evidcore.model import assemble
from evidcore.model.parts import AdaptedLinear, unpacked
from evidcore.model.policy import VLMPolicy
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.begin import run, start


@pytest.fixture(scope="module")
def exported(small_run, tmp_path_factory):
    return export_run(small_run, tmp_path_factory.mktemp("out") / "model")


@pytest.fixture(scope="module")
def cases(small_run):
    assembly = Assembly(load(small_run / "resolved.toml"))
    return [case for split in ("train", "validation", "test") for case in assembly.split("chest", split)]


@pytest.fixture(scope="module")
def prompt(small_run, cases):
    assembly = Assembly(load(small_run / "resolved.toml"))
    (prompt,) = assembly.tasks["report"].prompts(cases[0], assembly.view, 0)
    return prompt


@pytest.mark.slow
@torch.no_grad()
def test_transformers_gives_the_same_logits_as_the_runs_model(small_run, exported, prompt):
    model, processor = assemble.load(small_run / "checkpoints" / "03-sft")
    encoded = processor.encode(prompt)
    ids = torch.tensor([encoded.ids])
    handles = processor.image_processor(encoded.crops)["pixel_values"]
    expected = model(input_ids=ids, pixel_values=handles).logits

    loaded = AutoModelForImageTextToText.from_pretrained(exported)
    reader = AutoProcessor.from_pretrained(exported)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt.words()}]}]
    written = reader.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    inputs = reader(text=[written], images=[prompt.crops()[0].uri()], return_tensors="pt")
    assert inputs["input_ids"].tolist() == ids.tolist()
    assert inputs["pixel_values"].dim() == 5
    torch.testing.assert_close(loaded(**inputs).logits, expected, rtol=1e-4, atol=1e-4)

    backbone = AutoModel.from_pretrained(exported)
    hidden = backbone(**inputs).last_hidden_state
    torch.testing.assert_close(loaded.lm_head(hidden), expected, rtol=1e-4, atol=1e-4)


def test_it_holds_what_is_listed_and_nothing_else(exported):
    assert sorted(path.name for path in exported.iterdir()) == [
        "README.md", "chat_template.jinja", "config.json", "evid_lock.toml", "generation_config.json",
        "model.safetensors", "processor_config.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert all(path.stat().st_mode & 0o044 for path in exported.iterdir())


@pytest.mark.slow
def test_the_command_says_what_it_wrote(evid, small_run, tmp_path):
    result = json.loads(evid("export", small_run, tmp_path / "model", "--json").output)
    assert result["folder"] == str(tmp_path / "model")
    assert result["files"] == sorted(path.name for path in (tmp_path / "model").iterdir())
    assert "Read it before you pass the model on" in evid("export", small_run, tmp_path / "other").output


def test_no_case_no_report_and_no_path_is_in_it(small_run, exported, cases):
    names = {name.lower() for name in CT_RATE_FINDINGS}  # known to all, and tokens of their own
    sentences = {said.strip() for case in cases for said in case.report.text.split(".")}
    secret = {said for said in sentences if len(said.split()) > 2 and said.lower() not in names}
    assert len(secret) > 10
    secret |= {str(small_run.parents[2]), *(name for case in cases for name in (case.id, case.patient))}
    for path in exported.iterdir():
        content = path.read_bytes()
        assert [text for text in secret if text.encode() in content] == [], path.name


@torch.no_grad()
def test_a_chat_names_a_scan_by_its_path_and_reads_as_in_the_run(small_run, exported, prompt):
    _, processor = assemble.load(small_run / "checkpoints" / "03-sft")
    reader = AutoProcessor.from_pretrained(exported)
    path, text = prompt.crops()[0].volume.path, prompt.words()
    for key in ("path", "url", "image"):
        chat = [{"role": "user", "content": [{"type": "image", key: path}, {"type": "text", "text": text}]}]
        options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
        inputs = reader.apply_chat_template(chat, return_tensors="pt", **options)
        assert inputs["input_ids"].tolist() == [list(processor.encode(prompt).ids)]
        expected = reader.image_processor([prompt.crops()[0]])["pixel_values"]
        assert inputs["pixel_values"].equal(expected)
        assert chat[0]["content"][0] == {"type": "image", key: path}


@pytest.mark.slow
def test_the_four_lines_on_the_card_answer_as_the_run_does(small_run, exported, prompt, tmp_path):
    program = re.findall(r"```python\n(.*?)```", (exported / "README.md").read_text(), re.DOTALL)[0]
    assert len([line for line in program.splitlines() if line]) == 4
    place = tmp_path / "elsewhere"
    shutil.copytree(exported, place)
    content = Path(prompt.case.volumes[0].path).read_bytes()
    (place / "scan.nii.gz").write_bytes(gzip.compress(content))
    done = subprocess.run([sys.executable, "-c", program], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    policy = VLMPolicy(*assemble.load(small_run / "checkpoints" / "03-sft"))
    assert done.stdout.strip() == policy.generate([prompt], max_new_tokens=256)[0].strip() != ""


def test_the_front_matter_is_the_hubs(exported):
    text = (exported / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    table = yaml.safe_load(front)
    assert table["library_name"] == "transformers"
    assert table["license"] == "apache-2.0"
    assert table["datasets"] == ["phantom-chest"]
    assert table["pipeline_tag"] == "image-text-to-text"
    assert {"evidcore", "medical", "phantom"} <= set(table["tags"])
    assert "base_model" not in table
    assert NOTICE in body


def test_the_cards_figures_are_those_of_the_exported_model_with_their_lines(small_run, exported):
    text = (exported / "README.md").read_text()
    assert "### 04-evaluate" in text
    assert "### 02-evaluate" not in text  # measured what an earlier stage had trained
    result = json.loads((small_run / "results" / "04-evaluate.json").read_text())
    values = {row["metric"]: row["value"] for row in result["rows"]}
    assert f"| choice | format rate | {100 * values['format_rate']:.1f} % | {DASH} |" in text
    lines = result["reference_lines"]["choice"]
    known = [lines[key] for key in ("uniform_chance", "prior_only", "perfect_perception")]
    written = [f"{100 * value:.1f} %" for value in (values["strict_accuracy"], *known)]
    assert f"| choice | strict accuracy | {written[0]} | {DASH} | {' | '.join(written[1:])} |" in text
    assert "Every number here comes from generated phantoms" in text


def test_the_lock_says_what_the_model_rests_on(small_run, exported):
    lock = tomllib.loads((exported / "evid_lock.toml").read_text())
    of_run = tomllib.loads((small_run / "lock.toml").read_text())
    assert lock["dataset"] == of_run["dataset"]
    assert lock["package"] == of_run["package"]
    digest = hashlib.sha256((exported / "model.safetensors").read_bytes()).hexdigest()
    assert lock["weights"] == {"model.safetensors": digest}
    assert of_run["dataset"]["chest"]["fingerprint"] in (exported / "README.md").read_text()


def test_the_recipe_on_the_card_is_the_runs(small_run, exported, tmp_path):
    text = (exported / "README.md").read_text()
    (tmp_path / "again.toml").write_text(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])
    again, first = load(tmp_path / "again.toml"), load(small_run / "resolved.toml")
    assert again.stages == first.stages
    assert again.datasets == first.datasets
    assert "# line" not in text


def test_a_full_folder_and_a_run_without_a_model_are_refused(copied_run, exported, tmp_path):
    with pytest.raises(RunError, match=r"model: the folder is not empty \('README\.md' is in it\)"):
        export_run(copied_run, exported)
    (copied_run / "checkpoints" / "03-sft").unlink()
    with pytest.raises(RunError, match=r"03-sft has not finished\. `evid resume"):
        export_run(copied_run, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_run_that_has_not_measured_its_model_says_so(copied_run, tmp_path):
    for path in (copied_run / "results").glob("*-evaluate.json"):
        path.unlink()
    written = export_run(copied_run, tmp_path / "model")
    assert "Not measured: no evaluate or audit stage" in (written / "README.md").read_text()


@pytest.mark.slow
def test_no_place_of_weights_on_this_machine_is_in_it(small_run, tmp_path):
    root = tmp_path / "secret-place"
    tiny_language(root / "language")
    settings = {"architecture": "test_resnet", "num_classes": 10, "pretrained_cfg": {
        "input_size": [3, 160, 160], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "num_classes": 10,
        "first_conv": "conv1.0", "classifier": "fc",
    }}  # fmt: skip
    (root / "backbone").mkdir()
    (root / "backbone" / "config.json").write_text(json.dumps(settings))
    with torch.random.fork_rng():  # with some weights the pixel-flow proof fails
        torch.manual_seed(17)
        backbone = timm.create_model("test_resnet", num_classes=10)
    save_file(backbone.state_dict(), root / "backbone/model.safetensors")
    text = (small_run / "recipe.toml").read_text().split("[[stage]]")
    text = "[[stage]]".join(text[:2])  # the first stage alone
    text = re.sub(r"language = .*", 'language = { folder = "language" }', text)
    backbone = f'model = "test_resnet", pretrained = "{root / "backbone"}", size = 64, slices = 2'
    text = re.sub(r"encoder = .*", f'encoder = {{ use = "timm-slices", {backbone} }}', text)
    (root / "own.toml").write_text(text)
    folder = start(load(root / "own.toml"), root / "runs")
    run(folder)
    written = export_run(folder.path, tmp_path / "model")
    held = [path.name for path in written.iterdir() if b"secret-place" in path.read_bytes()]
    assert held == []
    model, _ = assemble.load(folder.path / "checkpoints" / "01-sft")
    loaded = AutoModelForImageTextToText.from_pretrained(written)
    assert loaded.config.encoder["pretrained"] == WITHHELD
    assert (loaded.config.encoder["use"], loaded.config.encoder["size"]) == ("timm-slices", 64)
    expected = model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
    assert bool(loaded.model.encoder.weights_loaded)
    assert AutoProcessor.from_pretrained(written).image_processor.encoder["pretrained"] == WITHHELD
    text = (written / "README.md").read_text()
    assert "license: unknown\n" in text
    assert "- Weights that the language model began with: unknown; they came from a folder" in text
    assert "- Weights that the encoder began with: unknown" in text


def test_a_model_of_parts_has_no_published_form(small_run, tmp_path):
    with pytest.raises(RunError, match=r"this one has encoder 'vit3d' and bridge 'projection'. Export it"):
        export_run(small_run, tmp_path / "model", "published")
    assert not (tmp_path / "model").exists()


def taken_apart(folder, size, **given):
    """The model of a folder as this package puts it together."""
    eyes, view = {"size": size, "windows": [[-1000, 400]]}, {"use": "slices", "slices": 3}
    return seeing_vlm(folder, eyes=eyes, view=view, **given)


@pytest.mark.parametrize(
    ("kind", "size", "bits"), [("qwen2_5_vl", 112, 16), ("qwen3_vl", 96, 16), ("qwen3_vl", 96, 4)]
)
def test_weights_in_16_or_4_bits_are_widened_and_merged_with_what_adapters_learnt(kind, size, bits, tmp_path):
    if bits == 4:
        pytest.importorskip("bitsandbytes", reason="pip install 'evidcore[quantization]'")
    tiny_vision_language(tmp_path / "stock", kind)
    given = {"bfloat16": ("encoder", "language"), "load_in_4bit": bits == 4}
    model, processor = taken_apart(tmp_path / "stock", size, **given)
    layers = model.model.language_model.layers
    projection = layers[0].self_attn.q_proj
    torch.manual_seed(0)
    down, up = torch.randn(2, projection.in_features), torch.randn(projection.out_features, 2) * 1e-4
    whole = unpacked(model)["model.language_model.layers.0.self_attn.q_proj.weight"]
    wanted = whole.float() + up @ down
    for layer in model.model.language_model.modules():
        for name, linear in list(layer.named_children()):
            if isinstance(linear, torch.nn.Linear):
                zeros = torch.zeros(2, linear.in_features), torch.zeros(linear.out_features, 2)
                setattr(layer, name, AdaptedLinear(linear, *zeros))
    layers[0].self_attn.q_proj = AdaptedLinear(projection, down, up)
    adapted = [name for name, layer in model.model.named_modules() if isinstance(layer, AdaptedLinear)]
    model.config.adapters = dict.fromkeys(adapted, 2)
    assemble.save(model, processor, tmp_path / "run")

    loaded, processor = assemble.load(tmp_path / "run")
    published = as_published(loaded, processor)
    assert torch.equal(published.model.language_model.layers[0].self_attn.q_proj.weight, wanted)
    assert {weight.dtype for weight in published.parameters()} == {torch.float32}
    widen(loaded)
    loaded.save_pretrained(tmp_path / "exported")
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "exported")
    assert {weight.dtype for weight in again.parameters()} == {torch.float32}
    assert torch.equal(again.model.language_model.layers[0].self_attn.q_proj.weight, wanted)
    assert (again.config.bfloat16, again.config.load_in_4bit) == (None, False)
    assert not [name for name in again.state_dict() if name.endswith((".down", ".up"))]


@pytest.mark.parametrize(("kind", "size"), [("qwen2_5_vl", 112), ("qwen3_vl", 96)])
def test_a_published_model_that_was_taken_apart_is_that_model_again(kind, size, tmp_path):
    stock = AutoModelForImageTextToText.from_pretrained(tiny_vision_language(tmp_path, kind))
    made = taken_apart(tmp_path, size)
    again = as_published(*made)
    assert type(again) is type(stock)
    weights, expected = again.state_dict(), stock.state_dict()
    assert weights.keys() == expected.keys()
    assert all(weights[name].equal(value) for name, value in expected.items())
    for token in ("image_token_id", "vision_start_token_id", "vision_end_token_id"):
        assert getattr(again.config, token) == getattr(stock.config, token)
