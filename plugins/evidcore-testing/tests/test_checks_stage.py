import dataclasses
import itertools

import pytest
import torch
from evidcore_testing import check_language, check_stage, stage_context
from evidcore_testing.recipes import phantoms, recipe_text
from mutants import altered, caught, changing

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


def resulting(**changes):
    return changing(Counts, "run", lambda result: dataclasses.replace(result, **changes))


def depending(**changes):
    needs = Dependencies(**{"model": {}, "upstream": {}, "words": "", **changes})
    return changing(Counts, "depends_on", lambda _: needs)


def fails(*given):
    raise RuntimeError("no such case")


STAGES = {
    "its label is a folder's name.*'my counts'": altered(Counts, label="my counts"),
    "its data entries are among those it speaks of.*chest": altered(Counts, data_uses=lambda self: ()),
    r"of known kinds.*\['widget'\]": altered(Counts, components=lambda self, recipe: [("widget", {})]),
    "not more than there is.*'bridge'": depending(upstream={"bridge": "c"}),
    "depends on is plain JSON.*TypeError": depending(model={"view": object()}),
    "what it computes is told in words.*' '": altered(Counts, workload=lambda self: Workload(text=" ")),
    "it is ready for what it was given.*RuntimeError: no such case": altered(Counts, check=fails),
    "rows are sound: there is one": resulting(rows=()),
    "it leaves answers where it measures. got none": resulting(answers=None),
    "it leaves figures where it trains.*figures None": altered(
        Counts, traits=StageTraits(measures=True, trains=True)
    ),
    "it leaves a checkpoint where it has an output.*model, there: False": altered(Counts, output="model"),
    "its result is JSON.*TypeError": resulting(figures={"a": {1}}),
}


def check(stage, context):
    check_stage(stage(kind="counts", data=(DataUse(dataset="chest"),)), context)


def test_a_sound_stage_passes(context):
    check(Counts, context)


@pytest.mark.parametrize("message", STAGES)
def test_a_stage_that_breaks_a_clause_is_caught(message, context):
    with caught(message):
        check(STAGES[message], context)


def loading(change, **members):
    """Return a language model that changes what it has loaded."""

    def load(self, corpus, seed):
        model, tokenizer = Pretrained.load(self, corpus, seed)
        with torch.no_grad():
            change(model, tokenizer)
        return model, tokenizer

    return altered(Pretrained, load=load, **members)


def no_template(model, tokenizer):
    tokenizer.chat_template = "{{ messages[0]['content'] }}"


def more_tokens(model, tokenizer):
    tokenizer.add_tokens([f"word-{number}" for number in range(5000)])


def unread(model, tokenizer):
    tokenizer.unk_token = tokenizer.decode(tokenizer("Which")["input_ids"][:1])


def drifts(model, tokenizer):
    model.get_input_embeddings().weight.add_(next(COUNT))


LANGUAGES = {
    "its weights are on this machine.*not here": altered(
        Pretrained, missing_weights=lambda self: "they are not here"
    ),
    "it can be loaded.*no such case": loading(fails),
    "its width is that of its configuration.*7": altered(Pretrained, width=lambda self: 7),
    "every token has an embedding.*5262 tokens, 262 embeddings": loading(more_tokens),
    "the tokenizer has a chat template": loading(no_template),
    r"a vocabulary that is counted knows the texts.*\['Which": loading(unread, counts_words=True),
    "weights follow from the seed.*same weights: False": loading(drifts),
    "weights follow from the seed.*other seed: True; its own: False": altered(Pretrained, has_weights=False),
}


def test_a_sound_language_model_passes(language):
    check_language(Pretrained(folder=str(language)))


@pytest.mark.parametrize("message", LANGUAGES)
def test_a_language_model_that_breaks_a_clause_is_caught(message, language):
    with caught(message):
        check_language(LANGUAGES[message](folder=str(language)))
