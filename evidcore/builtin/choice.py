"""Task `choice`: which of several findings is present, answered with a letter."""

import dataclasses
import random
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from evidcore.case import Answer, Case, Prompt, Question, Span, TextPart
from evidcore.contracts import Task, View
from evidcore.text.tags import LETTERS, STEM, TAG, inside, shortened, tag_fault

_ASKED_SHORT = {True: "Think, then answer.", False: "Answer."}
_ASKED_RULES = {
    True: (
        "Rules:\n"
        "1. Reason step by step inside exactly one <think> </think> pair.\n"
        "2. Then give the letter of the right option inside exactly one <answer> </answer> pair.\n"
        "3. Write nothing outside these two pairs and use no other tag.\n"
        "An answer that breaks a rule counts as wrong."
    ),
    False: (
        "Give only the letter of the right option inside exactly one <answer> </answer> pair, "
        "and write nothing outside it."
    ),
}
# an option that names others by letter or place, as "Both A and B", is true in its own order alone
IN_ORDER = re.compile(
    r"\b[A-H]\)?(, ?| ?[&+/] ?| (?i:and|or|nor) )\(?[A-H]\b|\b(?i:only|option) \(?[A-H]\b"
    r"|\b[A-H]\)? (?i:only|alone)\b|(?i:\b(of|all|both|none) (the )?(above|below)\b)"
)
_SAYING = r"(?:answer|option|choice)(?:\s+is)?(?:\s*[:=])?"  # one way to take a run of spaces: linear time


class Choice(Task):
    """Multiple choice over findings: one that is present among distractors.

    Evaluation (seed 0) asks the questions that came with a case; where there are none, and in training, they
    are drawn from the case's findings, in the words of a question about findings that came with it where
    there is one. A case without a present finding, or with too few others, asks nothing.

    Args:
        think: ask for `<think>…</think>` before the answer.
        distractors: "negatives" draws from the absent findings, so that one option is true; "random" draws
            from all others, as the paper's data do, so that several may be true and the accuracy of perfect
            eyes is below 1.
        options_per_question: how many options a drawn question has.
        questions_per_case: how many questions are drawn for a case, each for another present finding; 0 = one
            for every present finding.
        training_questions: "drawn" as above; "given" asks in training too what came with the case.
        permute: shuffle the options of questions that came with the case (drawn ones always are), but of
            those with an option like "Both A and B" or "None of the above".
        rules: spell the answer format out in the prompt, for models that were not trained on it.

    Source:
        Lai et al. 2026, Med3D-R1, arXiv:2602.01200 (MMVQA: one true abnormality, three random distractors).
    """

    evaluation = "choice"
    training_note = "It draws questions from findings, of which one is present and enough others are there. "
    training_note += 'Set training_questions = "given" on the task to ask what came with the cases.'

    def __init__(
        self,
        *,
        think: bool = True,
        distractors: Literal["negatives", "random"] = "negatives",
        options_per_question: Annotated[int, Ge(2), Le(len(LETTERS))] = 4,
        questions_per_case: Annotated[int, Ge(0)] = 1,
        training_questions: Literal["drawn", "given"] = "drawn",
        permute: bool = False,
        rules: bool = False,
    ) -> None:
        self.think = think
        self.distractors = distractors
        self.options_per_question = options_per_question
        self.questions_per_case = questions_per_case
        self.training_questions = training_questions
        self.permute = permute
        self.rules = rules

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Ask what came with the case (seed 0) or what is drawn from its findings."""
        rng = random.Random(f"choice/{seed}/{case.id}")
        if case.questions and (seed == 0 or not case.findings or self.training_questions == "given"):
            questions = [self._shuffled(item, rng) if self.permute else item for item in case.questions]
        else:
            questions = self._draw(case, seed, rng)
        parts = view.render(case) if questions else ()
        return [
            Prompt(
                id=f"{case.id}:{question.id}",
                case=case,
                task="choice",
                parts=(*parts, TextPart(text=self._ask(question))),
                reference=_reference(case, question),
            )
            for question in questions
        ]

    def _draw(self, case: Case, seed: int, rng: random.Random) -> list[Question]:
        present = list(case.present())
        asked = rng.sample(present, min(self.questions_per_case or len(present), len(present)))
        questions = []
        for number, finding in enumerate(asked):
            allowed = ("absent",) if self.distractors == "negatives" else ("absent", "present")
            others = [item.name for item in case.findings if item.name != finding and item.state in allowed]
            if len(others) < self.options_per_question - 1:
                continue
            options = [finding, *rng.sample(others, self.options_per_question - 1)]
            rng.shuffle(options)
            questions.append(
                Question(
                    id=f"{seed}-{number}",
                    text=_stem(case, rng),
                    options=tuple(options),
                    answer=options.index(finding),
                    true_options=tuple(i for i, name in enumerate(options) if name in present),
                )
            )
        return questions

    @staticmethod
    def _shuffled(question: Question, rng: random.Random) -> Question:
        order = list(range(len(question.options)))
        rng.shuffle(order)
        if any(map(IN_ORDER.search, question.options)):
            return question
        return dataclasses.replace(
            question, options=tuple(question.options[i] for i in order), answer=order.index(question.answer),
            true_options=tuple(sorted(order.index(i) for i in question.true_options)),
        )  # fmt: skip

    def _ask(self, question: Question) -> str:
        options = [f"{LETTERS[i]}) {option}" for i, option in enumerate(question.options)]
        asked = (_ASKED_RULES if self.rules else _ASKED_SHORT)[self.think]
        return "\n".join([question.text, *options, asked])

    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        """Return the right letter, after a verdict on each option where thinking is asked for."""
        answer = f"<answer>{prompt.reference['letter']}</answer>"
        if not self.think:
            return answer, ()
        true = set(prompt.reference["true_options"])
        holds, fails = prompt.reference["verdicts"]
        verdicts = [
            f"{LETTERS[i]} {option} {holds if i in true else fails}."
            for i, option in enumerate(prompt.reference["options"])
        ]
        return f"<think>{' '.join(verdicts)}</think>{answer}", ()

    def parse(self, prompt: Prompt, completion: str) -> Answer:
        """Read the letter under the strict format, and beside it as a tolerant reader would."""
        letters = LETTERS[: len(prompt.reference["options"])]
        malformed = strict_fault(completion, letters, think=self.think)
        return Answer(
            text=completion, malformed=malformed, think=inside(completion, "think"),
            choice=(inside(completion, "answer") or "").strip() if malformed is None else None,
            lenient_choice=lenient_letter(completion, letters, prompt.reference["options"]),
        )  # fmt: skip


def _stem(case: Case, rng: random.Random) -> str:
    """Return the words of a drawn question; what is known beforehand stands in front, as in given ones."""
    if about_findings := [item for item in case.questions if _is_about_findings(case, item)]:
        return rng.choice(about_findings).text
    indication = case.notes.get("indication")
    return f"Indication: {indication}. {STEM}" if indication else STEM


def _is_about_findings(case: Case, question: Question) -> bool:
    return all(case.state_of(option) is not None for option in question.options)


def _reference(case: Case, question: Question) -> Mapping[str, Any]:
    about_findings = _is_about_findings(case, question)
    present = [i for i, option in enumerate(question.options) if case.state_of(option) == "present"]
    true = question.true_options or sorted({question.answer, *present})
    return {
        "letter": LETTERS[question.answer],
        "options": list(question.options),
        "true_options": list(true),
        "truth_known": bool(question.true_options) or about_findings,
        "finding": question.kind or question.options[question.answer],
        "question": question.text,
        "verdicts": ["present", "absent"] if about_findings else ["true", "false"],
    }


def turned(prompt: Prompt, order: Sequence[int]) -> Prompt | None:
    """Return a multiple choice with its options in another order, in its words too.

    None where an option names others, and so is true in its own order alone.

    Args:
        prompt: its reference has `options` and `letter`.
        order: for each place, the option that comes there.
    """
    reference: Mapping[str, Any] = prompt.reference
    if list(order) != sorted(order) and any(map(IN_ORDER.search, reference["options"])):
        return None
    options = [reference["options"][place] for place in order]
    changed = {"options": options, "letter": LETTERS[order.index(LETTERS.index(reference["letter"]))]}
    if "true_options" in reference:
        changed["true_options"] = sorted(order.index(place) for place in reference["true_options"])
    parts = list(prompt.parts)
    for number, part in enumerate(parts):
        if isinstance(part, TextPart):
            text = part.text
            for letter, old, new in zip(LETTERS, reference["options"], options, strict=False):
                text = text.replace(f"{letter}) {old}", f"{letter}) {new}")
            parts[number] = TextPart(text=text)
    return dataclasses.replace(prompt, parts=tuple(parts), reference={**reference, **changed})


def strict_fault(completion: str, letters: str, *, think: bool) -> str | None:
    """Return why a completion breaks the form of `tag_fault`, or answers by no single letter; else None."""
    if (fault := tag_fault(completion, think=think)) is not None:
        return fault
    answer = inside(completion, "answer") or ""
    if answer not in letters or len(answer) != 1:
        return f"the answer is {shortened(answer)!r}, expected one letter of {letters}"
    return None


def lenient_letter(completion: str, letters: str, options: Sequence[str]) -> str | None:
    """Return the letter a tolerant reader finds, None where he would have to guess.

    He reads the last answer tag if there is one, closed or not, else what follows a think text, else all of
    it; takes "B", "b", "B)", "(B) lung nodule", "answer: B", "the answer is B.", or an option's name alone or
    after such words. An "a" before further words is the article.
    """
    bare = re.split(r"<answer>", completion, flags=re.IGNORECASE)
    text = bare[-1] if len(bare) > 1 else re.split(r"</think>", completion, flags=re.IGNORECASE)[-1]
    text = re.sub(r'\\boxed|\\text\w*|[*`$"{}<>\uff08\uff09\u3001\u3002]', " ", TAG.sub(" ", text)).strip()
    item = f"[{letters}{letters.lower()}]"
    if result := re.fullmatch(rf"[(\[]?({item})[)\].:]?", text):
        return result.group(1).upper()
    plain = re.sub(rf"^(?:the )?{_SAYING}\s+(?<= )(?:an? |the )?", "", text.strip(" .").lower())
    named = {
        letter
        for letter, name in zip(letters, options, strict=True)
        if plain in (name.lower(), f"{letter} {name}".lower())
    }
    if len(named) == 1:
        return named.pop()
    clear = rf"A\b(?!\s+\w)|a(?=\s*(?:[)\].:]|$))|{item.replace('A', '').replace('a', '')}\b"
    claims = re.findall(rf"(?i:\b{_SAYING})\s*[(\[]?({clear})", text)
    if claims:
        return str(claims[-1]).upper()
    marked = re.findall(rf"(?:^|[\s(\[])([{letters}])[)\].:](?=\s|$)", text)
    if len(set(marked)) == 1:
        return str(marked[0])
    lone = re.findall(rf"(?<![\w'])([{letters}])(?![\w'])(?:(?<!A)|(?=\s*(?:$|[\n,;\u2013-])))", text)
    return str(lone[0]) if not marked and len(set(lone)) == 1 else None
