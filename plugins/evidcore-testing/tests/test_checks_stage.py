"""The checks of stages and languages let right ones pass and name each clause that a wrong one breaks."""

import dataclasses
import itertools

import pytest
import torch
from evidcore_testing import check_language, check_stage, stage_context, tiny_language
from evidcore_testing.recipes import phantoms, recipe_text

from evidcore.contracts import Row, Stage, StageResult, StageTraits, Workload
from evidcore.contracts.stage import Dependencies
from evidcore.model.language import Pretrained
from evidcore.recipe import DataUse

RECIPE = recipe_text(
    {"kind": "fit", "component": "model.encoder", "data": [{"dataset": "chest"}]},
    dataset={"chest": phantoms(3, 1, 1)},
)
COUNT = itertools.count()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts(Stage):
    """Counts cases."""

    traits = StageTraits(measures=True)

    def workload(self):
        return Workload(text="counts cases")

    def run(self, context):
        counts = [(use.dataset, len(context.cases(use))) for use in self.data]
        rows = [Row(name=name, metric="cases", value=float(count)) for name, count in counts]
        return StageResult(rows=tuple(rows), answers=())


@pytest.fixture
def context(tmp_path):
    return stage_context(tmp_path, RECIPE)


def stage(**members):
    return type("Mutant", (Counts,), members)(kind="counts", data=(DataUse(dataset="chest"),))


def finding(**changes):
    return stage(run=lambda self, context: dataclasses.replace(Counts.run(self, context), **changes))


def depending(**changes):
    needs = Dependencies(**{"model": {}, "upstream": {}, "words": "", **changes})
    return stage(depends_on=lambda self, context, upstream: needs)


def fails(*given):
    raise RuntimeError("no such case")


STAGES = {
    "its label is a folder's name.*'my counts'": stage(label="my counts"),
    "its data entries are among those it speaks of": stage(data_uses=lambda self: ()),
    r"of known kinds.*\['widget'\]": stage(components=lambda self, recipe: [("widget", {})]),
    "not more than there is.*'bridge'": depending(upstream={"bridge": "c"}),
    "depends on is plain JSON": depending(model={"view": object()}),
    "what it computes is told in words": stage(workload=lambda self: Workload(text=" ")),
    "it is ready for what it was given.*RuntimeError: no such case": stage(check=fails),
    "rows are sound: there is one": finding(rows=()),
    "it leaves answers where it measures": finding(answers=None),
    "it leaves figures where it trains.*figures None": stage(traits=StageTraits(measures=True, trains=True)),
    "it leaves a checkpoint where it has an output.*model, there: False": stage(output="model"),
    "its result is JSON": finding(figures={"a": {1}}),
}


def test_a_right_stage_passes(context):
    check_stage(stage(), context)


@pytest.mark.parametrize("clause", STAGES)
def test_a_broken_stage_is_caught_by_its_clause(clause, context):
    with pytest.raises(AssertionError, match=rf"(?s){clause}"):
        check_stage(STAGES[clause], context)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_language(tmp_path_factory.mktemp("language")))


def language(**members):
    return type("Mutant", (Pretrained,), members)


def loading(change, **members):
    """Return a language model that changes what it has loaded."""

    def load(self, corpus, seed):
        model, tokenizer = Pretrained.load(self, corpus, seed)
        with torch.no_grad():
            change(model, tokenizer, seed)
        return model, tokenizer

    return language(load=load, **members)


def no_template(model, tokenizer, seed):
    tokenizer.chat_template = "{{ messages[0]['content'] }}"


def unread(model, tokenizer, seed):
    tokenizer.unk_token = tokenizer.decode(tokenizer("Which")["input_ids"][:1])


LANGUAGES = {
    "its weights are on this machine.*not here": language(missing_weights=lambda self: "they are not here"),
    "it can be loaded.*no such case": loading(fails),
    "its width is that of its configuration.*7": language(width=lambda self: 7),
    "every token has an embedding": loading(
        lambda model, tokenizer, seed: tokenizer.add_tokens([f"word-{number}" for number in range(5000)])
    ),
    "the tokenizer has a chat template": loading(no_template),
    r"a vocabulary that is counted knows the texts.*\['Which": loading(unread, counts_words=True),
    "weights follow from the seed.*same weights: False": loading(
        lambda model, tokenizer, seed: model.get_input_embeddings().weight.add_(next(COUNT))
    ),
    "weights follow from the seed.*other seed: True; its own: False": language(has_weights=False),
}


def test_a_right_language_model_passes(folder):
    check_language(Pretrained(folder=folder))


@pytest.mark.parametrize("clause", LANGUAGES)
def test_a_broken_language_model_is_caught_by_its_clause(clause, folder):
    with pytest.raises(AssertionError, match=rf"(?s){clause}"):
        check_language(LANGUAGES[clause](folder=folder))
