"""Which vision-language model a user names: a folder, or a model on the Hub at a commit."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidcore.api import DataError, find
from evidcore.model.language import Pretrained
from evidcore.registry.signature import component_class

_TEXTS = ("*.json", "*.txt", "*.jinja")  # configuration and tokenizer
_TIMEOUT_S = 15.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnModel:
    """A model that sees, as a recipe's table, and what its shape decides."""

    table: Mapping[str, Any]  # of model.language; a folder is absolute
    trained: tuple[str, ...]  # its parts that a stage trains
    context_tokens: int | None  # that its language model takes; None: not stated
    is_bfloat16: bool  # it was published in bfloat16


def own_model(model: str, revision: str) -> OwnModel:
    """Find a model, by its folder or its id on the Hugging Face Hub, and its configuration.

    Without a `revision` an id has the commit in the Hub's cache on this machine, or else the newest.
    """
    table = _table(model, revision)
    if "id" in table and not revision:
        table["revision"] = _fetched(model, "")
    language = Pretrained(**table)
    if language.vision() is None:
        _fetched(model, table["revision"])
    config = language.vision()
    if config is None or not hasattr(config, "vision_config"):
        raise DataError(
            f"--model {model}: a {getattr(config, 'model_type', 'model')} reads text alone. Name a "
            "vision-language model such as Qwen/Qwen2.5-VL-3B-Instruct, or write a recipe with an encoder "
            "beside it, as recipes/med3d_r1.toml has."
        )
    text, kind = config.get_text_config(), component_class(find("encoder", "published-vision").load())
    return OwnModel(
        table=table,
        # the projector is a bridge of its own, or belongs to what was published whole
        trained=("language",) if kind.read_published(language) else ("bridge", "language"),
        context_tokens=getattr(text, "max_position_embeddings", None),
        is_bfloat16="torch.bfloat16" in {str(config.dtype), str(text.dtype)},
    )


def _table(model: str, revision: str) -> dict[str, Any]:
    """Return the recipe's table of a model."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        if revision:
            raise DataError(f"--revision {revision}: goes with a model on the Hub, and {model} is a folder.")
        if not (folder / "config.json").is_file():
            hint = "Name one that save_pretrained wrote."
            raise DataError(f"--model {model}: the folder holds no config.json. {hint}")
        return {"folder": str(folder.resolve())}
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or model.startswith((".", "/")):
        what = "there is no such folder, and an id on the Hugging Face Hub is written OWNER/NAME"
        raise DataError(f"--model {model}: {what}. Correct it.")
    return {"id": model, "revision": revision}


def _fetched(name: str, revision: str) -> str:
    """Fetch configuration and tokenizer, some megabytes without weights; return the commit.

    Without a revision it is that in the Hub's cache on this machine, or else the newest.
    """
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    cached = None if revision else try_to_load_from_cache(name, "config.json", revision="main")
    if isinstance(cached, str):
        return Path(cached).parent.name
    try:
        # with the index of the weights the weights would seem to be here
        folder = snapshot_download(
            name, revision=revision or None, allow_patterns=list(_TEXTS), ignore_patterns=["*.index.json"],
            etag_timeout=_TIMEOUT_S,
        )  # fmt: skip
    except Exception as cause:  # of the Hub's client, of httpx, of the system
        first: Any = next(iter(str(cause).splitlines()), type(cause).__name__)
        instead = "--revision COMMIT names the commit without asking"
        if revision:
            instead = "--model FOLDER takes a model from disk"
        raise DataError(
            f"--model {name}: its shape is not known on this machine, and the Hugging Face Hub did not give "
            f"it ({first}). Correct the name, or connect; {instead}."
        ) from cause
    return Path(folder).name
