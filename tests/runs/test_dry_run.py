"""`evid check` and `evid plan` write and count prompts as the run does, with published chat templates."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import trl
from evidcore_plugin_lab.plan.plan import plan
from evidcore_testing.models import tiny_language
from transformers import AutoTokenizer

from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import StageOutputs, current_model
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
    uses = [use for stage in assembly.recipe.stages for use in stage.data]
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
    prompts = {
        stage: [
            len(processor.encode(prompt).ids)
            for row, use in zip(rows, uses, strict=True) if row["stage"] == stage
            for prompt in [
                prompt for case in assembly.cases(use)
                for prompt in assembly.tasks[use.task].prompts(case, assembly.view, 0)
            ][:16]
        ]
        for stage in ("02-sft", "03-grpo", "04-evaluate")
    }  # fmt: skip
    planned = {stage["stage"]: stage["lengths"] for stage in stages if stage["lengths"]}
    assert {stage: result["ground"] for stage, result in planned.items()} == dict.fromkeys(prompts, "counted")
    assert {stage: result["prompt_tokens"] for stage, result in planned.items()} == {
        stage: max(lengths) for stage, lengths in prompts.items()
    }


@pytest.mark.slow
def test_check_and_plan_hold_for_the_template_of_qwen2_5(evid, recipe_of):
    recipe = recipe_of("qwen2_5")
    rows = json.loads(evid("check", recipe, "--json").stdout)["data"]
    agree(rows, json.loads(evid("plan", recipe, "--json").stdout)["stages"], recipe)
    assert rows[-1]["prompt"].startswith(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>"
    )


@pytest.mark.slow
@pytest.mark.parametrize("template", ["gemma", "llama3", "phi3", "qwen3"])
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
    failed = evid(command, recipe_of("qwen3_6"), exit_code=2)
    assert "its chat template cannot be used, 1 thing would be lost or altered:" in failed.stderr
    assert "open thought: Its generation prompt ends in '<think>\\n'" in failed.stderr
    assert "a chat_template.jinja that begins the assistant's turn without opening a thought" in failed.stderr
