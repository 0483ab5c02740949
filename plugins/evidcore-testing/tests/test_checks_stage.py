"""The checks of stages and languages let right ones pass and name each clause that a wrong one breaks."""

import dataclasses
import itertools

import pytest
import torch
from evidcore_testing import check_language, check_stage, tiny_language

from evidcore.contracts import Row, Stage, StageResult, Workload
from evidcore.model.language import Pretrained
from evidcore.recipe import DataUse, load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.train.settings import Silent

RECIPE = """\
schema = 1
name = "counts"

[dataset.chest]
use = "phantom-chest"
train_cases = 3
validation_cases = 1
test_cases = 1

[model]
language = { use = "tiny", width = 32, layers = 1 }
view = { use = "volume" }
encoder = { use = "vit3d", width = 48, layers = 1, heads = 4, patch_zyx = [8, 16, 16] }
bridge = { use = "projection" }

[[stage]]
kind = "fit"
component = "model.encoder"
data = [{ dataset = "chest" }]
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts(Stage):
    """Counts cases."""

    measures = True

    def workload(self):
        return Workload(text="counts cases")

    def run(self, context):
        counts = [(use.dataset, len(context.cases(use))) for use in self.data]
        rows = [Row(name=name, metric="cases", value=float(count)) for name, count in counts]
        return StageResult(rows=tuple(rows), answers=())


@pytest.fixture
def context(tmp_path):
    (tmp_path / "counts.toml").write_text(RECIPE, encoding="utf-8")
    assembly = Assembly(load(tmp_path / "counts.toml"))
    (tmp_path / "01-counts").mkdir()
    return Context(assembly, "01-counts", folder=tmp_path / "01-counts", announce=Silent())


def made(form):
    return form(kind="counts", data=(DataUse(dataset="chest"),))


def test_a_right_stage_passes(context):
    check_stage(made(Counts), context)


def with_(**members):
    return type("Changed", (Counts,), members)


def found(stage, context, **changes):
    return dataclasses.replace(Counts.run(stage, context), **changes)


def fails(self, context):
    raise RuntimeError("no such case")


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (with_(label="my counts"), "its label is a folder's name.*'my counts'"),
        (with_(data_uses=lambda self: ()), "its data entries are among those it speaks of"),
        (with_(components=lambda self, recipe: [("widget", {})]), r"of known kinds.*\['widget'\]"),
        (with_(starts_from=lambda self, upstream: {"bridge": "c"}), "not more than there is.*'bridge'"),
        (with_(needs_words=lambda self, upstream: "all"), "needs the words 'all'"),
        (with_(model_tables=lambda self, context: {"view": object()}), "depends on is plain JSON"),
        (with_(workload=lambda self: Workload(text=" ")), "what it computes is told in words"),
        (with_(check=fails), "it is ready for what it was given.*RuntimeError: no such case"),
        (with_(run=fails), "it is ready for what it was given.*RuntimeError: no such case"),
        (with_(run=lambda self, context: StageResult(answers=())), "rows are sound: there is one"),
        (
            with_(run=lambda self, context: found(self, context, answers=None)),
            "it leaves answers where it measures",
        ),
        (with_(trains=True), "it leaves figures where it trains.*figures None"),
        (with_(output="model"), "it leaves a checkpoint where it has an output.*model, there: False"),
        (with_(run=lambda self, context: found(self, context, figures={"a": {1}})), "its result is JSON"),
    ],
)
def test_a_broken_stage_is_caught_by_its_clause(broken, clause, context):
    with pytest.raises(AssertionError, match=rf"(?s){clause}"):
        check_stage(made(broken), context)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tiny_language(tmp_path_factory.mktemp("language") / "it")
    return next(tmp_path_factory.getbasetemp().glob("language*/it"))


def test_a_right_language_model_passes(folder):
    check_language(Pretrained(folder=str(folder)))


class Absent(Pretrained):
    def missing_weights(self):
        return "weights are not here"


class Wide(Pretrained):
    def width(self):
        return 7


class Crowded(Pretrained):
    def load(self, corpus, seed):
        model, tokenizer = super().load(corpus, seed)
        tokenizer.add_tokens([f"word-{number}" for number in range(5000)])
        return model, tokenizer


class NoTemplate(Pretrained):
    def load(self, corpus, seed):
        model, tokenizer = super().load(corpus, seed)
        tokenizer.chat_template = "{{ messages[0]['content'] }}"
        return model, tokenizer


class Unread(Pretrained):
    counts_words = True

    def load(self, corpus, seed):
        model, tokenizer = super().load(corpus, seed)
        tokenizer.unk_token = tokenizer.decode(tokenizer("Which")["input_ids"][:1])
        return model, tokenizer


class Moody(Pretrained):
    moods = itertools.count()

    def load(self, corpus, seed):
        model, tokenizer = super().load(corpus, seed)
        with torch.no_grad():
            model.get_input_embeddings().weight.add_(next(self.moods))
        return model, tokenizer


class Drawn(Pretrained):
    def load(self, corpus, seed):
        model, tokenizer = super().load(corpus, seed)
        with torch.no_grad():
            model.get_input_embeddings().weight.add_(seed)
        return model, tokenizer


class Untrained(Pretrained):
    has_weights = False


class Broken(Pretrained):
    def load(self, corpus, seed):
        raise OSError("half a file")


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (Absent, "its weights are on this machine.*not here"),
        (Broken, "it can be loaded.*half a file"),
        (Wide, "its width is that of its configuration.*7"),
        (Crowded, "every token has an embedding"),
        (NoTemplate, "the tokenizer has a chat template"),
        (Unread, r"a vocabulary that is counted knows the texts.*\['Which"),
        (Moody, "weights follow from the seed.*same weights: False"),
        (Drawn, "weights follow from the seed.*other seed: False; its own: True"),
        (Untrained, "weights follow from the seed.*other seed: True; its own: False"),
    ],
)
def test_a_broken_language_model_is_caught_by_its_clause(broken, clause, folder):
    with pytest.raises(AssertionError, match=rf"(?s){clause}"):
        check_language(broken(folder=str(folder)))
