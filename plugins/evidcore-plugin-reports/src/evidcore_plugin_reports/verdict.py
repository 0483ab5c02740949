"""Tasks that teach a language model to look: of one finding by itself, or a letter without a volume."""

import dataclasses
import random
from collections.abc import Sequence

from evidcore.api import Answer, Case, Prompt, Span, Task, TextPart, View
from evidcore.builtin.choice import Choice

STATES = ("present", "absent")


class Verdict(Task):
    """Ask of one finding whether it is present.

    Behind a question of its own no other finding tells anything. Where one of several options is true, each
    verdict that is given tells of those that follow, and a model that sees nothing is right about many.

    Args:
        question: with "{finding}" in it.
        answer: with "{state}", which is "present" or "absent", at its end; "{finding}" may stand before it,
            so that the state is read where the finding has just been named.
    """

    name, evaluation = "verdict", "choice"

    def __init__(self, *, question: str = "{finding}?", answer: str = "{finding} {state}") -> None:
        name, text = ("question", question) if self.evaluation else ("answer", answer)
        if "{finding}" not in text:
            raise ValueError(f"{name} must have {{finding}} in it, got {text!r}")
        if not answer.endswith("{state}"):
            raise ValueError(f"answer must end in {{state}}, got {answer!r}")
        self.question, self.answer = question, answer

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Ask of each finding that is known to be present or absent, in an order drawn from the seed."""
        known = [item for item in case.findings if item.state in STATES]
        random.Random(f"verdict/{seed}/{case.id}").shuffle(known)
        parts = view.render(case) if known else ()
        return [
            Prompt(
                id=f"{case.id}:{self.name}:{item.name}", case=case, task=self.name,
                parts=(*parts, TextPart(text=self.question.format(finding=item.name))),
                reference={
                    "letter": "AB"[STATES.index(item.state)], "options": list(STATES), "true_options": [],
                    "truth_known": False, "finding": item.name,
                },
            )
            for item in known
        ]  # fmt: skip

    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        return self._written(prompt)["AB".index(prompt.reference["letter"])], ()

    def parse(self, prompt: Prompt, completion: str) -> Answer:
        """Take one of the two answers, whatever its capitals and whether a full stop follows."""
        known = [text.strip().lower() for text in self._written(prompt)]
        text = completion.strip().rstrip(".").lower()
        choice = "AB"[known.index(text)] if text in known else None
        malformed = None if choice else f"the answer is neither {known[0]!r} nor {known[1]!r}"
        return Answer(text=completion, malformed=malformed, choice=choice, lenient_choice=choice)

    def _written(self, prompt: Prompt) -> list[str]:
        finding = prompt.reference["finding"]
        return [self.answer.format(finding=finding, state=state) for state in STATES]


class Statement(Verdict):
    """Have the state of each finding told behind one question, which names none.

    Rows of a volume begin alike up to the finding: with `questions_per_volume` a step costs half as much.
    Nobody could know the finding, so it is labelled "given": `emphasis` weighs it 0. For training alone.
    """

    name, evaluation = "statement", ""

    def __init__(self, *, question: str = "State a finding.", answer: str = " {finding} {state}") -> None:
        super().__init__(question=question, answer=answer)

    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        """Return the answer, with all before the state labelled."""
        text, _ = super().gold(prompt)
        return text, (Span(start=0, end=len(text.rpartition(" ")[0]), label="given"),)


class Letter(Choice):
    """Ask `choice` without a volume, and teach the letter that follows from verdicts alone.

    The verdicts, which nobody could know here, are labelled "given": re-weighter `emphasis` weighs them 0.
    Mixed into rows with volumes, these teach the form of an answer at the price of text.
    """

    evaluation = ""

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Ask what `choice` does, in words alone."""
        asked = super().prompts(case, view, seed)
        texts = [tuple(part for part in prompt.parts if isinstance(part, TextPart)) for prompt in asked]
        return [
            dataclasses.replace(prompt, id=f"{prompt.id}:letter", task="letter", parts=parts)
            for prompt, parts in zip(asked, texts, strict=True)
        ]

    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        """Return what `choice` does, with its verdicts labelled."""
        text, _ = super().gold(prompt)
        end = text.find("</think>")
        return text, (Span(start=0, end=end, label="given"),) if end > 0 else ()
