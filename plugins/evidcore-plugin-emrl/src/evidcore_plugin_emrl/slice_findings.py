"""Task `slice-findings`: name what one slice shows; what a `policy-reader` is asked."""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le
from evidcore_plugin_medvol_r1.target import shown_slices

from evidcore.api import Answer, Case, Finding, Prompt, Span, Task, TextPart, View
from evidcore.text.tags import prose_fault
from evidcore_plugin_emrl.cross_view import QUESTION
from evidcore_plugin_emrl.matched_slices import NOTHING, lacks_mask, shown_findings


class SliceFindings(Task):
    """Show one slice of the scan, as a reader of `cross-view` is shown it, and ask which findings are seen.

    The gold answer names the findings that the masks show there, `There is a liver cyst.`, or says that none
    is seen. It teaches a model to read slices before it reads scans, and a `policy-reader` to answer.
    `prompt.case` is the case as far as the slice shows it: other findings count as absent.

    Cases with a present finding without a mask, or of several volumes, ask nothing.

    Args:
        cache_folder: keeps what was measured of masks.
        seen_share: how often a slice with a finding is drawn, where the scan has one and one without.
        question: what is asked; that of the reward.
    """

    evaluation = "report"

    def __init__(
        self,
        cache_folder: Path,
        *,
        seen_share: Annotated[float, Ge(0), Le(1)] = 0.7,
        question: str = QUESTION,
    ) -> None:
        self.seen_share = seen_share
        self.question = question
        self._cache_folder = cache_folder

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Ask about one slice of those that the view shows, drawn by the seed."""
        if len(case.volumes) != 1 or not case.findings or lacks_mask(case) is not None:
            return ()
        shown = shown_slices(view.render(case))
        seen = {z: sorted(shown_findings(case, part.crop, self._cache_folder)) for z, part in shown.items()}
        rng = random.Random(f"slice-findings/{seed}/{case.id}")
        wants_some = rng.random() < self.seen_share
        fitting = [z for z in shown if bool(seen[z]) == wants_some] or list(shown)
        if not fitting:
            return ()
        z = rng.choice(fitting)
        absent = {name: Finding(name=name, state="absent") for name in case.present() if name not in seen[z]}
        findings = [absent.get(one.name, one) for one in case.findings]
        return [
            Prompt(
                id=f"{case.id}:slice-findings:{z}",
                case=dataclasses.replace(case, findings=tuple(findings)),
                task="slice-findings",
                parts=(shown[z], TextPart(text=self.question)),
                reference={"present": seen[z]},
            )
        ]

    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        """Return a sentence for each finding of the slice, in the order of their names."""
        text, spans = "", []
        for name in prompt.reference["present"]:
            start = len(text) + bool(text)
            text += f"{' ' if text else ''}There is a {name}."
            spans.append(Span(start=start, end=len(text), label="abnormal"))
        return (text, tuple(spans)) if text else (NOTHING, (Span(start=0, end=len(NOTHING), label="normal"),))

    def parse(self, prompt: Prompt, completion: str) -> Answer:
        """Take the whole completion as what is said of the slice; malformed without a word, or with tags."""
        said = completion.strip()
        return Answer(text=completion, malformed=prose_fault(said), report=said or None)
