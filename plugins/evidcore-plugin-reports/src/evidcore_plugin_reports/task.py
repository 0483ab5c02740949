"""Task `report`: write the report of the scan."""

from collections.abc import Sequence

from evidcore.api import Answer, Case, Prompt, Span, Task, TextPart, View
from evidcore.text.tags import prose_fault


class ReportTask(Task):
    """Ask for the report; cases without one ask nothing.

    Args:
        instruction: what the model is told after it was shown the scan.
    """

    evaluation = "report"

    def __init__(self, *, instruction: str = "Write the report.") -> None:
        self.instruction = instruction

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        return () if case.report is None else self.ask(case, view)

    def ask(self, case: Case, view: View) -> Sequence[Prompt]:
        return [
            Prompt(
                id=f"{case.id}:report",
                case=case,
                task="report",
                parts=(*view.render(case), TextPart(text=self.instruction)),
                reference={"present": list(case.present())},
            )
        ]

    def parse(self, prompt: Prompt, completion: str) -> Answer:
        """Take the whole completion as the report; malformed without a word, or with tags in it."""
        report = completion.strip()
        return Answer(text=completion, malformed=prose_fault(report), report=report or None)

    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        report = prompt.case.report
        if report is None:
            raise ValueError(f"case {prompt.case.id!r} has no report, so there is no gold answer")
        return report.text, report.spans
