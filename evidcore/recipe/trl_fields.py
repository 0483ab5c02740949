"""Which fields `trl = { … }` may pass to TRL, found in its installed source without importing it.

What the recipe says by keys of its own, and what would move the run's files, is refused.
"""

import ast
import functools
import operator
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evidcore.errors import EvidError, did_you_mean
from evidcore.registry.factory import Components, Form, mistakes_of
from evidcore.registry.signature import Option

CONFIGS: Mapping[str, str] = {"grpo": "GRPOConfig", "sft": "SFTConfig"}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {
        "loss_type": "grpo",  # trl's default is dapo; the papers' is grpo
        "beta": 0.0,
        "epsilon": 0.2,
        "scale_rewards": "group",
        "use_bias_correction_kl": False,  # trl's default weighs the KL term by the ratio; the papers do not
    },
    "sft": {},
}
_RECIPE_KEYS: Mapping[str, str] = {
    "learning_rate": "learning_rate", "max_steps": "steps", "num_train_epochs": "steps", "seed": "seed",
    "data_seed": "seed", "num_generations": "answers_per_prompt", "temperature": "temperature",
    "max_completion_length": "max_new_tokens", "reward_weights": "weight of [[stage.reward]]",
    "generation_batch_size": "prompts_per_step", "steps_per_generation": "prompts_per_step",
    "per_device_train_batch_size": "prompts_per_forward or rows_per_forward",
    "save_steps": "save_every_steps",
    "gradient_accumulation_steps": "prompts_per_forward or rows_per_forward",
    "max_tool_calling_iterations": "tools",
}  # fmt: skip
_RUN_FOLDER = (
    "output_dir", "resume_from_checkpoint", "save_strategy", "save_total_limit",
    "logging_strategy", "report_to", "log_completions", "log_multimodal", "run_name", "project",
    "push_to_hub", "hub_model_id", "hub_token", "eval_strategy", "do_train", "do_eval", "do_predict",
    "remove_unused_columns", "dataset_kwargs", "max_length", "completion_only_loss", "model_init_kwargs",
    "log_completions_hub_repo", "load_best_model_at_end", "shuffle_dataset", "disable_tqdm",
    "trust_remote_code", "packing", "logging_steps", "logging_first_step", "dataloader_num_workers",
    "dataloader_pin_memory",
)  # fmt: skip
NO_EFFECT = (
    "use_vllm", "use_transformers_continuous_batching", "generation_kwargs", "cache_implementation",
    "repetition_penalty",
)  # fmt: skip
OWNED: Mapping[str, str] = {
    **{field: f"the recipe says it with `{key}`" for field, key in _RECIPE_KEYS.items()},
    **{field: "it belongs to the core" for field in _RUN_FOLDER},
    **{field: "it has no effect, since answers are not sampled by trl" for field in NO_EFFECT},
}


@functools.cache
def fields(stage: str) -> dict[str, str]:
    """Return the fields of the trainer configuration of a `sft` or `grpo` stage, each with its annotation."""
    trl, transformers = _folder("trl"), _folder("transformers")
    result: dict[str, str] = {}
    for file in (
        transformers / "training_args.py",
        trl / "trainer" / "base_config.py",
        trl / "trainer" / f"{stage}_config.py",
    ):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except OSError as cause:
            raise EvidError(f"{file}: cannot be read. pip install 'trl>=1.16,<1.17'.") from cause
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                result |= {
                    item.target.id: ast.unparse(item.annotation)
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
    if "learning_rate" not in result:
        raise EvidError(f"{trl}: {CONFIGS[stage]} has no fields here. pip install 'trl>=1.16,<1.17'.")
    return result


def problems(stage: str, table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (field, sentence) for every entry of a `trl` table that cannot be passed on."""
    known = fields(stage)
    allowed = known.keys() - OWNED.keys()
    wrong = []
    for field, value in table.items():
        if field in OWNED:
            wrong.append((field, f"{OWNED[field]}; it cannot be set through trl, got {value!r}."))
        elif field not in known:
            text = f"{CONFIGS[stage]} of the installed trl has no such field.{did_you_mean(field, allowed)}"
            wrong.append((field, text))
        elif not _fits(known[field], value):
            wrong.append((field, f"must be {known[field]}, got {value!r}."))
    return wrong


def _folder(package: str) -> Path:
    spec = find_spec(package)  # of a top-level name: finds it without importing it
    if spec is None or spec.origin is None:
        raise EvidError(f"{package} is not installed. `pip install {package}`.")
    return Path(spec.origin).parent


def _fits(annotation: str, value: Any) -> bool:
    """Tell whether a TOML value fits a plain annotation; one that is not plain lets everything pass."""
    names: dict[str, Any] = {
        "bool": bool, "int": int, "float": float, "str": str, "dict": dict, "list": list, "None": None,
    }  # fmt: skip
    parts = [part.strip() for part in annotation.split("|")]
    if not names.keys() >= set(parts):
        return True
    hint = functools.reduce(operator.or_, [names[part] for part in parts])
    form = Form({"value": Option(name="value", type=hint, default=None)})
    return not mistakes_of(lambda table: form.check(table, Components()), {"value": value})[1]
