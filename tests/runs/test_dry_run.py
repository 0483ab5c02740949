"""`evid check` and `evid plan` write and count prompts as the run does, with published chat templates."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import trl
from evidcore_plugin_lab.plan.plan import plan
from evidcore_testing import CHAT_TEMPLATE
from evidcore_testing.models import tiny_language, tiny_vision_language
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from evidcore.case import Finding, Question
from evidcore.errors import RecipeError
from evidcore.model.architecture import families
from evidcore.recipe import load
from evidcore.runs import dry_run as module
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import StageOutputs, current_model, fresh_encoder, weightless_processor
from evidcore.runs.dry_run import answering, dry_run

SHIPPED = Path(trl.__file__).parent / "chat_templates"


@pytest.fixture(scope="module")
def recipe_of(evid, recipe_text):
    """Return a function that writes a recipe whose random language model has one of trl's chat templates."""

    def write(template: str) -> Path:
        language = tiny_language(evid.folder / f"language-{template}")
        tokenizer = AutoTokenizer.from_pretrained(language)
        ends = {"additional_special_tokens": ["<|eot_id|>", "<end_of_turn>", "<|end|>"]}
        tokenizer.add_special_tokens({"bos_token": "<|endoftext|>", **ends})
        tokenizer.save_pretrained(language)
        model = AutoModelForCausalLM.from_pretrained(language)
        model.resize_token_embeddings(len(tokenizer))
        model.save_pretrained(language)
        shutil.copy(SHIPPED / f"{template}.jinja", language / "chat_template.jinja")
        text = recipe_text.replace(
            '{ use = "tiny", width = 32, layers = 1 }', f'{{ folder = "{language.name}" }}'
        )
        fit = text.index('[[stage]]\nkind = "fit"\ncomponent = "model.language"')
        text = text[:fit] + text[text.index('[[stage]]\nkind = "sft"') :]
        path = evid.folder / f"{template}.toml"
        path.write_text(text.replace("max_new_tokens = 24", "max_new_tokens = 300"), encoding="utf-8")
        return path

    return write


def agree(rows, stages, recipe: Path) -> None:
    """Hold what check saw and plan counted against what the run's own processor writes."""
    assembly = Assembly(load(recipe))
    _, processor = current_model(assembly, StageOutputs())
    uses, lengths = [use for stage in assembly.recipe.stages for use in stage.data], {}
    for row, use in zip(rows, uses, strict=True):
        if not use.task:
            continue
        task = assembly.tasks[use.task]
        prompts = [prompt for case in assembly.cases(use) for prompt in task.prompts(case, assembly.view, 0)]
        written = processor.encode(prompts[0])
        assert row["prompt_tokens"] == len(written.ids)
        assert row["image_tokens"] == written.ids.count(processor.image_token_id)
        assert row["answer_tokens"] == len(processor.encode_answer(task.gold(prompts[0])[0]).ids)
        shown, mark = processor.tokenizer.decode(written.ids), processor.image_token
        assert row["prompt"] == shown.replace(mark * row["image_tokens"], mark)
        counted = [len(processor.encode(prompt).ids) for prompt in prompts[:16]]
        lengths[row["stage"]] = lengths.get(row["stage"], []) + counted
    planned = {stage["stage"]: stage["lengths"] for stage in stages if stage["lengths"]}
    told = {stage: (result["ground"], result["prompt_tokens"]) for stage, result in planned.items()}
    assert told == {stage: ("counted", max(some)) for stage, some in lengths.items()}


@pytest.mark.slow
@pytest.mark.parametrize("template", ["gemma", "llama3", "phi3", "qwen2_5", "qwen3"])
def test_check_and_plan_count_what_the_run_writes(evid, recipe_of, template):
    recipe = recipe_of(template)
    seen, planned = dry_run(load(recipe)), plan(load(recipe), evid.folder / "runs")
    rows = [dataclasses.asdict(row) for row in seen.data]
    agree(rows, [dataclasses.asdict(stage) for stage in planned.stages], recipe)


def test_an_arm_says_nothing_of_how_the_own_line_answers():
    sft, grpo, longer = (SimpleNamespace(output="model", arm=arm) for arm in ("", "", "longer"))
    fit, asked, asked_longer = (
        SimpleNamespace(output=output, arm=arm)
        for output, arm in (("encoder", ""), (None, ""), (None, "longer"))
    )
    stages = [fit, asked, sft, longer, asked_longer, asked, grpo, asked_longer, asked]
    assert answering(SimpleNamespace(stages=stages)) == [
        None, None, sft, longer, longer, sft, grpo, longer, grpo,
    ]  # fmt: skip


@pytest.mark.parametrize("template", ["qwen2_5", "gemma"])  # the first one writes tools itself
@pytest.mark.slow
def test_the_tools_that_a_model_is_told_are_shown_and_counted_from_its_stage_on(evid, recipe_of, template):
    recipe = recipe_of(template)
    tools = ["--set", 'stage.grpo.rollout={use="tool-call"}', "--set", 'stage.grpo.tools=[{use="crop"}]']

    def seen(*changes):
        result = json.loads(evid("check", recipe, "--json", *changes).stdout)["data"]
        rows = {row["stage"]: row for row in result}
        result = json.loads(evid("plan", recipe, "--json", *changes).stdout)["stages"]
        return rows, {item["stage"]: item["lengths"] and item["lengths"]["prompt_tokens"] for item in result}

    (bare, planned), (told, planned_told) = seen(), seen(*tools)
    assert told["02-sft"] == bare["02-sft"]
    for stage in ("03-grpo", "04-evaluate"):
        assert '"crop"' in told[stage]["prompt"]
        more = told[stage]["prompt_tokens"] - bare[stage]["prompt_tokens"]
        assert more > 50
        assert planned_told[stage] - planned[stage] == more


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "plan", "run"])
def test_a_template_that_loses_something_is_refused_by_check_plan_and_run(evid, recipe_of, command):
    failed = evid(command, recipe_of("llama3_2"), exit_code=2)
    assert "its chat template cannot be used, 1 thing would be lost or altered:" in failed.stderr
    assert "date: It writes today's date" in failed.stderr
    assert "a chat_template.jinja that holds a fixed date or none" in failed.stderr


def test_check_says_that_training_would_ask_nothing(recipe_text, tmp_path, monkeypatch):
    asked, split = (Question(id="q", text="Which?", options=("yes", "no"), answer=0),), Assembly.split
    few = {"findings": (Finding(name="mass", state="absent"),), "questions": asked}
    changed = lambda *given: [dataclasses.replace(case, **few) for case in split(*given)]  # noqa: E731
    monkeypatch.setattr(Assembly, "split", changed)
    (tmp_path / "r.toml").write_text(recipe_text)
    with pytest.raises(RecipeError, match=r"-grpo.data.0.: task 'choice' asks nothing about any of .* Set"):
        dry_run(load(tmp_path / "r.toml"))


IN_4_BITS = [
    "model.bfloat16=['language']",
    "model.load_in_4bit=true",
    "stage.sft.lora={}",
    "stage.grpo.lora={}",
]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU, where they are not refused")
@pytest.mark.parametrize("command", ["check", "run"])
def test_4_bits_are_refused_by_check_and_run_on_a_cpu(evid, recipe_of, command):
    changes = [word for item in IN_4_BITS for word in ("--set", item)]
    failed = evid(command, recipe_of("llama3"), *changes, exit_code=2)
    assert re.search(r"model.load_in_4bit: torch sees no GPU.*Run it on a GPU, or leave", failed.stderr)


@pytest.mark.slow
def test_the_model_that_a_run_would_train_lies_in_4_bits(recipe_of):
    pytest.importorskip("bitsandbytes", reason="pip install 'evidcore[quantization]'")
    model, _ = current_model(Assembly(load(recipe_of("llama3"), IN_4_BITS)), StageOutputs())
    assert model.model.language_model.layers[0].mlp.up_proj.weight.dtype == torch.uint8


EYES = Path(__file__).with_name("published_eyes.toml").read_text(encoding="utf-8")
MONTAGE, SLICES = '{ use = "montage", boxes = "BOXES", multiple_px = SIDE }', '{ use = "slices" }'
LOOKS = 'rollout = { use = "tool-call" }\ntools = [{ use = "zoom" }]\n'
KINDS = {"qwen2_5_vl": ("28", "pixels"), "qwen3_vl": ("32", "thousandths")}


@pytest.fixture(scope="module", params=KINDS)
def differs(request, tmp_path_factory):
    """Return what is said of a recipe over a Qwen-VL, with files as its publisher has them."""

    def say(view, more="", boxes="", **files):
        folder, side = tmp_path_factory.mktemp("eyes"), KINDS[request.param][0]
        tiny_vision_language(folder / "KIND", request.param)
        for name, content in files.items():
            (folder / "KIND" / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        text = EYES.replace('"VIEW"', view).replace("BOXES", boxes).replace("SIDE", side)
        (folder / "r.toml").write_text(text + more)
        assembly = Assembly(load(folder / "r.toml"))
        encoder = fresh_encoder(assembly, StageOutputs())
        processor = weightless_processor(assembly, assembly.language.tokenizer(), encoder)
        return list(module._mismatches(assembly, encoder, processor, {(1, 224, 224)}))

    say.kind = request.param
    return say


@pytest.mark.parametrize(
    ("view", "more", "boxes"),
    [
        (MONTAGE, "", "pixels"), (MONTAGE, "", "thousandths"), (MONTAGE, "", "voxels"),
        (SLICES, "", ""), (SLICES, LOOKS, "thousandths"), ('{ use = "drr" }', LOOKS, ""),
    ],
)  # fmt: skip
def test_boxes_in_another_unit_than_a_model_was_trained_on_are_told(differs, view, more, boxes):
    trained = KINDS[differs.kind][1]
    says = f"boxes are written in {boxes}, and the language model was trained to write {trained}. Take"
    assert [says in item for item in differs(view, more, boxes)] == [True] * (boxes not in ("", trained))


def test_what_a_published_processor_does_otherwise_is_told(differs):
    usual = [0.5] * 3 if differs.kind == "qwen3_vl" else [0.48145466, 0.4578275, 0.40821073]
    sound = {"image_mean": usual, "size": {"shortest_edge": 3136, "longest_edge": 50176}}
    assert differs(SLICES, preprocessor_config=sound, chat_template={"chat_template": CHAT_TEMPLATE}) == []
    other = {"image_mean": [0.1] * 3, "min_pixels": 3136, "max_pixels": 50175}
    system = {"chat_template": "<|im_start|>system\nBe brief.<|im_end|>\n" + CHAT_TEMPLATE}
    template, colours, size = differs(SLICES, preprocessor_config=other, chat_template=system)
    assert "before a question stand '<|im_start|>user\\n' and '<|im_start|>system\\nBe brief." in template
    assert (
        f"has image_mean = [0.1, 0.1, 0.1], and published-vision takes {[round(i, 4) for i in usual]}"
        in colours
    )
    assert "in 224 x 224 = 50176 pixels, and the model's own processor gives it 3136 to 50175. Ch" in size


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        ({"image_mean": "x"}, "has image_mean = x,"), ({"image_std": [[1]]}, "has image_std = [[1]],"),
        ({"size": "big"}, ""), ({"min_pixels": [1]}, "gives it [1] to inf"), (5, ""),
    ],
)  # fmt: skip
def test_values_of_a_processor_that_are_none_are_told_and_no_fault(differs, damaged, said):
    told = differs(SLICES, preprocessor_config=damaged, chat_template={"chat_template": CHAT_TEMPLATE})
    assert [said in item for item in told] == [True] * bool(said)


def test_families_go_by_the_types_of_transformers():
    assert set(families()) <= set(CONFIG_MAPPING_NAMES)
