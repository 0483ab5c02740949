"""The checks of stages and of language models."""

import json
import re
from pathlib import Path

import torch

from evidcore.api import Language, Stage, StageContext, Workload
from evidcore.contracts import Corpus
from evidcore.contracts.stage import NullSink
from evidcore.errors import EvidError
from evidcore.model.template import read_turns
from evidcore.recipe import load
from evidcore.registry import KIND_NAMES
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore_testing.checks_evaluation import rows_are_sound
from evidcore_testing.clauses import Clauses


def stage_context(folder: Path, recipe: str) -> StageContext:
    """Return the context of a first stage of a recipe, for `check_stage`.

    Args:
        folder: an empty one, to write into.
        recipe: the text of a recipe.
    """
    path, output = folder / "recipe.toml", folder / "01-mine"
    path.write_text(recipe, encoding="utf-8")
    output.mkdir()
    return Context(Assembly(load(path)), output.name, folder=output, announce=NullSink())


def check_stage(stage: Stage, context: StageContext) -> None:
    """Assert the contract of a stage, and run it.

    - its label is a folder's name;
    - its data entries are among those it speaks of, and components are of known kinds;
    - what its result depends on is plain JSON, and not more than there is;
    - what it computes is told in words;
    - it is ready for what it was given;
    - it leaves sound rows where it measures, figures where it trains, a checkpoint where it has an output.

    Args:
        stage: the component under test, as a recipe makes it.
        context: of a run whose stages before it have finished, with a folder to write into.
    """
    check = Clauses(stage)
    is_named = stage.kind and re.fullmatch(r"[\w-]+", stage.label)
    check(is_named, "its label is a folder's name", f"kind {stage.kind!r}, label {stage.label!r}")
    missing = [use for use in stage.data if use not in stage.data_uses()]
    check(not missing, "its data entries are among those it speaks of", f"not {missing}")
    kinds = {kind for kind, _ in stage.components(context.recipe)}
    check(kinds <= {*KIND_NAMES}, "components are of known kinds", f"got {sorted(kinds)}")
    upstream = {"language": "a", "model": "b"}
    needs = stage.depends_on(context, upstream)
    is_known = needs.upstream.items() <= upstream.items() and needs.words in ("", "phrases", "texts")
    clause = "what its result depends on is plain JSON, and not more than there is"
    check(is_known, clause, f"starts from {dict(needs.upstream)}, needs the words {needs.words!r}")
    with check.raises_nothing(clause, "its tables"):
        json.dumps(needs.model, default=dict)  # tables may be other mappings
    load = stage.workload()
    is_told = isinstance(load, Workload) and load.text.strip()
    check(is_told, "what it computes is told in words", f"got {load}")
    with check.raises_nothing("it is ready for what it was given", "check(context)"):
        stage.check(context)
        result = stage.run(context)
    measures, trains = stage.traits.measures, stage.traits.trains
    check(not measures or result.answers is not None, "it leaves answers where it measures", "got none")
    if measures or result.rows:
        rows_are_sound(check, result.rows, None)
    got = f"figures {result.figures}"
    check(not trains or result.figures is not None, "it leaves figures where it trains", got)
    has_output = (context.folder / "checkpoint").is_dir()
    clause = "it leaves a checkpoint where it has an output"
    check(has_output == (stage.output is not None), clause, f"{stage.output}, there: {has_output}")
    with check.raises_nothing("its result is JSON", f"{sorted(result.to_json())}"):
        json.dumps([result.to_json(), [dict(line) for line in result.answers or ()]], allow_nan=False)


def check_language(language: Language) -> None:
    """Assert the contract of a language model, and load it.

    - its width is that of the embeddings of its configuration and of the loaded model;
    - every token has an embedding, and the tokenizer has a chat template;
    - a vocabulary that is counted knows the texts that it was counted on;
    - weights follow from the seed: the same each time, and others only where it has none of its own;
    - it says what is missing, or nothing.

    Args:
        language: the component under test, whose weights are on this machine.
    """
    check = Clauses(language)
    missing = language.missing_weights()
    check(missing == "", "its weights are on this machine", f"{missing!r}")
    texts = ("Which finding is present?", "None.")
    corpus = Corpus(texts=lambda: list(texts))
    with check.raises_nothing("it can be loaded", "a corpus of texts"):
        (model, tokenizer), *others = (language.load(corpus, seed) for seed in (0, 0, 1))
    config, embeddings = language.config(corpus), model.get_input_embeddings().weight
    known = (language.width(), None if config is None else config.get_text_config().hidden_size)
    got = f"width and configuration {known}, embeddings {tuple(embeddings.shape)}"
    same = all(one in (None, embeddings.shape[1]) for one in known)
    check(same, "its width is that of its configuration and of the loaded model", got)
    clause = "every token has an embedding, and the tokenizer has a chat template"
    got = f"{len(tokenizer)} tokens, {len(embeddings)} embeddings"
    check(len(tokenizer) <= len(embeddings), clause, got)
    try:
        read_turns(tokenizer, where=type(language).__name__)
    except EvidError as error:
        check.fail(clause, error, error)
    if language.counts_words:
        unknown = [text for text in texts if tokenizer.unk_token_id in tokenizer(text)["input_ids"]]
        check(not unknown, "a vocabulary that is counted knows the texts", f"not {unknown}")
    weights = model.state_dict()
    again, other = (
        all(torch.equal(value, weights[name]) for name, value in loaded.state_dict().items())
        for loaded, _ in others
    )
    got = f"same seed, same weights: {again}; other seed: {other}; its own: {language.has_weights}"
    check(again and other == language.has_weights, "weights follow from the seed, or are its own", got)
