"""Stage `fit`: train one component on its own, where it offers that."""

import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from evidcore.contracts import FitData, Stage, StageContext, StageResult, StageTraits, Workload
from evidcore.contracts.stage import Dependencies, Key, Problems
from evidcore.errors import PluginError, did_you_mean
from evidcore.recipe.schema import RecipeContext, Table
from evidcore.registry.factory import Components, Form, Option, arguments, check_options, options
from evidcore.registry.signature import component_class

LANGUAGE = "model.language"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit(Stage):
    """Train one component by its own `fit`."""

    component: str  # "model.encoder", "model.language" or "service.<name>"
    options: Table = dataclasses.field(default_factory=dict)  # keyword-only parameters of the component's fit

    traits: ClassVar[StageTraits] = StageTraits(needs_tasks=False, trains=True, validates=True)

    @property
    def label(self) -> str:
        """Return the kind with the component's last name: `fit-encoder`."""
        return f"{self.kind}-{self.component.rpartition('.')[2]}"

    @property
    def output(self) -> str:
        """Return "encoder", "language" or "service.<name>"."""
        return self.component.removeprefix("model.")

    @classmethod
    def filled(cls, values: Mapping[str, Any], around: RecipeContext) -> dict[str, Any]:
        """Fill in the options of the component's fit."""
        form, given = Form(fit_options(values["component"], around) or {}), values.get("options", {})
        checked = form.check(given, Components(around.services))
        return {**values, "options": form.resolved(given, checked)}

    @classmethod
    def problems(cls, table: Mapping[str, Any], at: Key, around: RecipeContext) -> Problems:
        """Yield what is wrong with the component and with the options of its fit."""
        component, options = table.get("component"), table.get("options", {})
        known = ["model.encoder", LANGUAGE, *(f"service.{name}" for name in around.services)]
        if not isinstance(component, str):
            return
        if component not in known:
            hint = did_you_mean(component, known)
            yield (*at, "component"), f"must be one of {', '.join(known)}, got {component!r}.{hint}"
            return
        if component.startswith("model.") and "bridge" in around.has_weights:
            text = f"{component} would be trained anew below a stage that already trained the bridge to it."
            yield (*at, "component"), f"{text} Move this stage up."
        if around.table("service", component.partition(".")[2]).get("isolated"):
            text = f"{component} is isolated, and a fit trains in the run's process."
            yield (*at, "component"), f"{text} Leave `isolated` out, or name `pretrained` weights."
            return
        if component == LANGUAGE:
            if "language" in around.has_weights:
                text = "the language model already has weights, and is not fitted."
                yield (*at, "component"), f"{text} Leave the stage out, or use sft with train = ['language']."
            around.has_weights.add("language")
        try:
            result = fit_options(component, around)
        except PluginError:
            return  # reported where the component is named
        if result is None:
            text = f"{component} has no fit() and load(), so there is nothing to train. Leave the stage out."
            yield (*at, "component"), text
        elif isinstance(options, Mapping):
            for mistake in check_options(result, options, around.services):
                yield (*at, "options", *mistake.key), mistake.text

    def depends_on(self, context: StageContext, upstream: Mapping[str, str]) -> Dependencies:
        """Return the component's own table; a fit begins anew.

        The language model's also depends on view and image tokens, and counts the words of its own data.
        """
        model = context.recipe.model
        if self.component == LANGUAGE:
            tokens = context.image_tokens(self.data[0])
            parts = {"view": model.view, "language": model.language, "image_tokens": tokens}
            return Dependencies(model=parts, upstream={}, words="phrases")
        values = {"encoder": model.encoder} if self.component == "model.encoder" else {}
        return Dependencies(model=values, upstream={}, words="")

    def workload(self) -> Workload:
        """Return what it computes, as far as the component's options say."""
        steps = self.options.get("steps")
        text = f"fit {self.component}" + (f", {steps} steps" if steps else "")
        summary = f"`fit` of {self.component} on {named_data(self)}"
        return Workload(text=text, summary=summary, train=(self.output,))

    def run(self, context: StageContext) -> StageResult:
        """Train the component on the training cases, choose on the validation cases of the same data sets."""
        component: Any
        text: dict[str, Any] = {}
        if self.component == LANGUAGE:
            component = context.language
            asked = [use for use in self.data if use.task]
            text = {
                "tasks": {use.task: context.tasks[use.task] for use in asked},
                "shares": {use.task: use.sampling_weight for use in asked},
                "view": context.view,
                "image_tokens": context.image_tokens(self.data[0]),
                "phrases": context.phrases,
            }
        elif self.component == "model.encoder":
            component = context.encoder()
        else:
            component = context.services[self.component.removeprefix("service.")]
        datasets = dict.fromkeys(use.dataset for use in self.data)
        train = [case for use in self.data for case in context.cases(use)]
        validation = [case for name in datasets for case in context.split(name, "validation")]
        folder = context.folder / "checkpoint"
        folder.mkdir(parents=True, exist_ok=True)
        steps = itertools.count(1)

        def log(figures: Mapping[str, float]) -> None:
            step = next(steps)
            context.announce.step_finished(int(figures.get("step", step)), figures)

        values = arguments(component.fit, self.options, self.component)
        component.fit(FitData(train, validation, folder, context.recipe.seed, log, **text), **values)
        return StageResult(figures=json.loads((folder / "fit.json").read_text(encoding="utf-8")))


def fit_options(component: str, around: RecipeContext) -> dict[str, Option] | None:
    """Return the options of a component's `fit`, None if it has none, or no `load` to read it back."""
    made = component_class(around.factory_of(component))
    fit = getattr(made, "fit", None) if hasattr(made, "load") else None
    return None if fit is None else options(fit)


def named_data(stage: Stage) -> str:
    """Return a stage's data entries as a model card lists them: `chest/report, chest/choice`."""
    names = [f"{use.dataset}/{use.task}" if use.task else use.dataset for use in stage.data]
    return ", ".join(dict.fromkeys(names))
