"""Pretrained language models: from the Hugging Face Hub at a commit, or from a folder."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from evidcore.cache import plain_file
from evidcore.compute.loading import TELLING, refuse_random
from evidcore.contracts import Corpus, Language
from evidcore.errors import DataError, EvidError
from evidcore.model.architecture import families, shipped
from evidcore.model.template import control_tokens, read_turns

INDEX = "model.safetensors.index.json"
ANEW = "Get it anew: a download was cut off, or git-lfs left a pointer in its place."
NOTHING = Corpus()  # a pretrained tokenizer has its words
# of a number by the end of its name, far above every published model
_MOST = {"(layer|depth|block|stage|head|expert)s?": 10_000, "labels": 100_000}
_MOST |= {"(size|dim|width|embd|d_model|d_ff|inner|channels)": 10_000_000}


class Pretrained(Language):
    """A published model, or one that was trained here.

    What is published as a vision-language model is loaded whole; its decoder is the language model.

    Args:
        recipe_folder: where a relative `folder` starts.
        id: on the Hugging Face Hub.
        revision: commit, with `id`.
        folder: that `save_pretrained` wrote.
    """

    def __init__(
        self, recipe_folder: Path | None = None, *, id: str = "", revision: str = "", folder: str = ""
    ) -> None:
        self.id, self.revision = id, revision or None
        self.folder = str((recipe_folder or Path()) / folder) if folder else ""
        self.name = self.folder or self.id  # what transformers loads

    @classmethod
    def problems(cls, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the source: none, two, or one that may change tomorrow."""
        given = [key for key in ("id", "folder") if table.get(key)]
        if len(given) != 1:
            yield "", f"must have exactly one of id and folder, got {' and '.join(given) or 'none'}."
        if table.get("id") and not table.get("revision"):
            text = "revision is missing: without a commit, the same recipe may train another model tomorrow."
            yield "", f"{text} Copy it from huggingface.co/{table['id']}/commits."
        if table.get("revision") and not table.get("id"):
            yield "revision", f"goes with id only, got {table['revision']!r}."

    def width(self) -> int | None:
        """Return the width of its embeddings; None where that needs a download."""
        config = self.vision()
        return None if config is None else int(config.get_text_config().hidden_size)

    def config(self, corpus: Corpus = NOTHING) -> Any | None:
        """Return the language model's configuration; None where nothing here knows its shape."""
        config = self.vision()
        return None if config is None else config.get_text_config()

    def vision(self) -> Any | None:
        """Return the whole configuration; None where nothing here knows its shape.

        It is read from the model's folder, from the Hub's cache on this machine, or from the architectures
        that come with this package.
        """
        config = self._local(read_config)
        return read_config(shipped()[self.id].folder) if config is None and self.id in shipped() else config

    def tokenizer(self, corpus: Corpus = NOTHING) -> Any | None:
        """Return its tokenizer from the folder or the Hub's cache; None where it is not on this machine."""
        from transformers import AutoTokenizer

        tokenizer = self._local(AutoTokenizer.from_pretrained)
        if tokenizer is not None and (config := self.vision()) is not None:
            _refuse_unembedded(tokenizer, config.get_text_config().vocab_size, self.name)
        return tokenizer

    def published(self) -> Mapping[str, Any]:
        from transformers import ProcessorMixin
        from transformers.image_processing_base import ImageProcessingMixin

        result = dict(families().get(getattr(self.vision(), "model_type", ""), {}))
        for read in (ProcessorMixin.get_processor_dict, ImageProcessingMixin.get_image_processor_dict):
            with contextlib.suppress(OSError, ValueError, TypeError):  # of a model of text there is none
                result |= read(self.name, revision=self.revision, local_files_only=True)[0]
        return result

    def missing_weights(self) -> str:
        if self.id:
            return missing_weights(self.id, self.revision)
        for file in sorted(plain_file(self.folder).glob("*.safetensors")):
            try:
                with safe_open(file, framework="pt") as opened:  # the header alone, of a file as long
                    kinds = {opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
            except (OSError, SafetensorError) as cause:
                raise DataError(f"model.language: {file} holds no weights ({cause}). {ANEW}") from cause
            if kinds & {"I8", "U8", "F8_E4M3", "F8_E5M2"}:  # would be read without their scales
                raise DataError(f"model.language: {file} has quantised weights. Name the model they are of.")
        if absent := _absent_shards(Path(self.folder, INDEX)):
            raise DataError(f"model.language: {self.folder!r} lacks {absent}, which its index lists. {ANEW}")
        return ""

    def load(self, corpus: Corpus = NOTHING, seed: int = 0) -> tuple[Any, Any]:
        """Load model and tokenizer."""
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

        self.vision()  # says what is wrong with a folder
        name, revision = self.name, self.revision
        who = f"model.language: {name!r} (revision {revision or 'newest'})"
        try:
            self.missing_weights()  # of a folder, it says which file holds none
            config = read_config(name, revision=revision)
            sees = hasattr(config, "vision_config")
            tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
            if tokenizer.chat_template is None:
                raise DataError(
                    f"model.language: the tokenizer of {name!r} has no chat template, so prompts cannot be "
                    "written; take the instruction-tuned version of the model, or put a chat_template.jinja "
                    "beside its tokenizer."
                )
            read_turns(tokenizer, where=name)  # refused before its weights are read
            # safetensors only: a pickle may run code when it is read
            model, info = (AutoModelForImageTextToText if sees else AutoModelForCausalLM).from_pretrained(
                name, revision=revision, config=config, use_safetensors=True, dtype=torch.float32, **TELLING
            )
        except EvidError:
            raise
        except Exception as cause:  # tokenizers raises nothing narrower
            text = f"{who} could not be loaded: {str(cause).partition(chr(10))[0]} Check the name,"
            raise DataError(f"{text} the network and that it has safetensors weights.") from cause
        refuse_random(who, info)
        _refuse_unembedded(tokenizer, model.get_input_embeddings().weight.shape[0], name)
        return model, tokenizer

    def _local(self, load: Callable[..., Any]) -> Any:
        """Load a configuration or tokenizer from a folder, or from the Hub's cache on this machine."""
        try:
            plain_file(self.name)
            return load(self.name, revision=self.revision, local_files_only=True)
        except EvidError:
            raise
        except Exception as cause:  # tokenizers raises nothing narrower, as of a file of a newer version
            if self.id and isinstance(cause, OSError | ValueError | RecursionError):
                return None
            key, why = "id" if self.id else "folder", str(cause).partition("\n")[0]
            text = f"model.language.{key}: {self.name!r} holds no model that can be read ({why})"
            remedy = "Name a folder that save_pretrained wrote, or use { id = … } for a model on the Hub."
            raise DataError(f"{text}. {remedy}") from cause


def read_config(name: str | Path, **source: Any) -> Any:
    """Return a model's configuration; which attention computes it is ours to choose.

    Raises:
        DataError: of an adapter, quantised weights, or a number that would make transformers fill the memory.
    """
    from transformers import AutoConfig, PretrainedConfig
    from transformers.utils.peft_utils import find_adapter_config_file

    who, given = f"model.language: {str(name)!r}", PretrainedConfig.get_config_dict(name, **source)[0]
    _refuse_sizes(str(name), "", given)
    if given.get("quantization_config"):
        raise DataError(f"{who} has quantised weights. Name the model that they were made of.")
    if find_adapter_config_file(str(name), **source) is not None:
        text = f"{who} holds an adapter (adapter_config.json), which would be trained in place of the model."
        raise DataError(f"{text} Merge it with peft's merge_and_unload, or move it elsewhere.")
    config = AutoConfig.from_pretrained(name, **source)
    config._attn_implementation = None  # a name in it may be that of a kernel on the Hub
    return config


def _refuse_unembedded(tokenizer: Any, rows: int, name: str) -> None:
    """Refuse words that a tokenizer knows and its model does not, and control tokens that are written."""
    words, written = tokenizer.get_vocab().items(), f"{tokenizer.chat_template} {tokenizer.eos_token}"
    unwritten = {token for token in control_tokens(tokenizer) if token not in written}
    lost = sorted(word for word, place in words if place >= rows and word not in unwritten)
    if lost:
        text = f"model.language: {name!r} has {rows} embeddings, and none for {len(lost)} of its tokenizer's"
        raise DataError(f"{text} tokens, as {', '.join(map(repr, lost[:3]))}. Put its own tokenizer there.")


def _refuse_sizes(where: str, name: str, value: Any) -> None:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else ((name, item) for item in value):
            _refuse_sizes(where, key, item)
    for end, most in _MOST.items() if isinstance(value, int | float) else ():
        if value > most and re.search(f"{end}$", name):
            text = f"{where}: {name} of its config.json is {value}, at most {most} is read."
            raise DataError(f"{text} Correct the number, or name another model.")


def _absent_shards(index: Path) -> str:
    """Name the files of weights that an index lists and that do not lie beside it; "" for none."""
    if not index.is_file():
        return ""
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return ", ".join(sorted({name for name in listed if not (index.parent / name).is_file()}))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as cause:
        raise DataError(f"{index}: lists no files of weights ({type(cause).__name__}). {ANEW}") from cause


def missing_weights(name: str, revision: str | None) -> str:
    """Say that the weights of a model on the Hub are not on this machine, and what gets them; else ""."""
    from huggingface_hub import try_to_load_from_cache

    files = [try_to_load_from_cache(name, file, revision=revision) for file in ("model.safetensors", INDEX)]
    kept = [file for file in files if isinstance(file, str)]
    if kept and not _absent_shards(Path(kept[-1]).parent / INDEX):
        return ""
    known = shipped().get(name)
    size = f" ({known.weights_bytes / 1e9:.2f} GB, {known.licence})" if known else ""
    return f"weights of {name}{size} are not here. `hf download {name} --revision {revision}` gets them."
