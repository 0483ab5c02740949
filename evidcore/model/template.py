"""What a chat template writes around what is said, read off it once; and what it would lose.

A run writes its prompts, its training rows and its tool turns from `Turns`: the text of a prompt, the images
in it and the answer stand there as they are, and the template has written only what stands around them. So
training reads what sampling reads. `round_trip` renders turns through the template and names what would reach
a run otherwise than it was said: such a template is refused.
"""

import contextlib
import dataclasses
import itertools
import re
import resource
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from evidcore.errors import RunError

Form = Literal["text", "parts"]  # how a template takes what a turn says: a string, or a list of parts
Message = tuple[str, str]  # role and text

_ASK, _ANSWER, _TOOL = "ask-5d41", "answer-402a", "tool-bc4b"
_DAY = "day-7f0c"
_TEXT = 'Slice 12: 3.5 x 4 mm.\n\n- "left" & <right>, 5 %?\n  A) naïve'
_THINK, _UNTHINK = "<think>", "</think>"
# special tokens of Qwen-VL, InternVL, GLM-V, Mistral, DeepSeek, PaliGemma; what tools say is not an answer
_TAG = re.compile(r"(?<![a-z])(?:think|tool|call|answer|box|quad|ref|points?|python_tag|(?:loc|seg)\d)", re.I)
_REPLY = re.compile(r"result|response|output|available", re.I)
# of a rendering; a template of trl takes at most 0.2 million steps, most of them to compile it
_MOST_STEPS, _MOST_CHARACTERS, _MOST_BYTES = 2_000_000, 1_000_000, 1 << 29
_MEMORY_LIMIT = threading.Lock()  # a process has one, which all its threads share
_STRING = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_TAG_OF_JINJA = re.compile(rf"\{{#.*?#\}}|\{{[{{%](?:{_STRING}|[^'\"])*?[%}}]\}}", re.S)
# one operation that may last for hours; `f(*rest)`, `f(**rest)` and `"-" * 40` are not meant
_COSTLY = re.compile(r"[^\s(,*]\s*\*(?!\s*\d{1,4}\b)|\|\s*round\b")
_DATED = "It writes today's date: a run that goes on or is evaluated tomorrow would read other prompts."
_DEAF = "A user turn after an answer is refused, or changes what stood before it."
# a macro of this name stands before the function that gives the day
_CLOCK = "{%- macro strftime_now(format) -%}" + _DAY + "{%- endmacro -%}"
_REPLACE = (
    "Put beside the tokenizer a chat_template.jinja that {}; name that folder as model.language.folder."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turns:
    """What a chat template writes around what is said."""

    before_question: str
    before_answer: str  # from a question's end to where its answer begins
    end_of_turn: str  # from an answer's end to the control token that ends the model's turn, which is in it
    after_answer: str  # from an answer's end to where the next question begins
    before_next_answer: str  # from that question's end to where its answer begins
    form: Form = "text"


class Loss(NamedTuple):
    """Something that would not come through a chat template as it goes in."""

    what: str  # its name
    sentence: str
    remedy: str


def read_turns(tokenizer: Any, chat_template: str | None = None, *, where: str) -> Turns:
    """Return what a tokenizer's chat template writes around what is said."""
    turns, losses = round_trip(tokenizer, chat_template)
    if turns is None:
        listing = "\n".join(f"    {loss.what}: {loss.sentence} {loss.remedy}" for loss in losses)
        count = "1 thing" if len(losses) == 1 else f"{len(losses)} things"
        raise RunError(
            f"{where}: its chat template cannot be used, {count} would be lost or altered:\n{listing}"
        )
    return turns


def round_trip(tokenizer: Any, chat_template: str | None = None) -> tuple[Turns | None, tuple[Loss, ...]]:
    """Render turns of user and assistant, and name what of it does not come back.

    Returns:
        What stands around what is said, None where something is lost; and all that is.
    """
    return _Template(tokenizer, chat_template or tokenizer.get_chat_template()).round_trip()


def tool_listing(tokenizer: Any, chat_template: str, functions: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what a template writes before a question where it tells of functions; None where it does not."""
    template = _Template(tokenizer, chat_template)
    before, after = template.prompt_parts() or ("", "")
    rendered = template.render([("user", _ASK)], asks=True, tools=functions) or ""
    result, mark, rest = rendered.partition(_ASK)
    is_shown = mark and rest == after and result != before
    return result if is_shown and all(item["function"]["name"] in result for item in functions) else None


class _Template:
    """A chat template with the form in which it takes what is said."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        self.tokenizer, self.template = tokenizer, template
        self.form: Form = "text"
        self.failure = ""  # what the template said when it last refused

    def round_trip(self) -> tuple[Turns | None, tuple[Loss, ...]]:
        """Return what stands around what is said, and the losses."""
        parts = self.prompt_parts()
        if parts is None:
            how = (
                "A user turn is refused, left out or written twice, given as a string and as a list of parts"
                f"{f' ({self.failure})' if self.failure else ''}."
            )
            return None, (_loss("question", how, "writes the user's text once"),)
        before, after = parts
        trained = self._split([("user", _ASK), ("assistant", _ANSWER)], (_ASK, _ANSWER), asks=False)
        again = self._split([("user", _ASK), ("assistant", _ANSWER), ("user", _TOOL)], (_ASK, _ANSWER, _TOOL))
        ended = "" if trained is None else self._up_to_control_token(trained[2])
        losses = [*self._altered(before, after), *_answer((before, _unopened(after)), trained, ended)]
        if again is None:
            losses.append(_loss("second question", _DEAF, "writes each turn once and in order"))
        if again is None or losses:
            return None, tuple(losses)
        turns = Turns(
            before_question=before, before_answer=_unopened(after), end_of_turn=ended,
            after_answer=again[2], before_next_answer=_unopened(again[3]), form=self.form,
        )  # fmt: skip
        return turns, ()

    def render(
        self, messages: Sequence[Message], *, asks: bool = False, template: str = "", tools: Any = None
    ) -> str | None:
        """Return what the template writes, None where it refuses; `asks`: the model's turn begins last."""
        is_text = self.form == "text"
        written = [
            {"role": role, "content": text if is_text else [{"type": "text", "text": text}]}
            for role, text in messages
        ]
        options = {"chat_template": template or self.template, "add_generation_prompt": asks, "tools": tools}
        try:
            with _bounded(template or self.template):
                result = str(self.tokenizer.apply_chat_template(written, tokenize=False, **options))
            if len(result) > _MOST_CHARACTERS:
                raise RuntimeError(f"it writes {len(result)} characters, at most {_MOST_CHARACTERS} are read")
            return result
        except ImportError:
            raise  # jinja2 is missing or old
        except Exception as cause:  # a program of others: it may fail in any way at turns that it lacks
            self.failure = str(cause) or f"it takes more than {_MOST_BYTES >> 20} MiB of memory"
            return None

    def _split(
        self, messages: Sequence[Message], marks: Sequence[str], *, asks: bool = True
    ) -> list[str] | None:
        """Return what stands around the marks, None where they do not all stand once and in order."""
        chat = self.render(messages, asks=asks)
        pieces = []
        for mark in marks:
            if chat is None or chat.count(mark) != 1:
                return None
            piece, chat = chat.split(mark)
            pieces.append(piece)
        return [*pieces, chat or ""]

    def prompt_parts(self) -> tuple[str, str] | None:
        """Return what stands around a question, and keep the form in which the template has taken it."""
        for form in ("text", "parts"):
            self.form = form
            if parts := self._split([("user", _ASK)], (_ASK,)):
                return parts[0], parts[1]
        return None

    def _up_to_control_token(self, text: str) -> str:
        """Return the text up to its first control token, which is in it; "" where there is none."""
        tokens = [token for token in control_tokens(self.tokenizer) if token in text]
        if not tokens:
            return ""
        first = min(tokens, key=lambda token: (text.index(token), -len(token)))
        return text[: text.index(first) + len(first)]

    def _altered(self, before: str, after: str) -> Iterator[Loss]:
        """Yield what makes a question another one, at once or tomorrow."""
        if self.render([("user", _TEXT)], asks=True) != before + _TEXT + after:
            how = f"The user's text {_TEXT!r} does not come back as it was."
            yield _loss("question", how, "leaves text alone")
        if _DAY in (self.render([("user", _ASK)], asks=True, template=_CLOCK + self.template) or ""):
            yield _loss("date", _DATED, "holds a fixed date or none")


@contextlib.contextmanager
def _bounded(template: str) -> Iterator[None]:
    """Stop a template that would run for ever or fill the memory, which jinja2's sandbox does not."""
    tags = (re.sub(_STRING, "''", tag) for tag in _TAG_OF_JINJA.findall(template))
    if any(_COSTLY.search(tag) for tag in tags if tag[1] != "#"):
        raise RuntimeError("it rounds, takes a power, or multiplies by other than a number of 1 to 4 digits")
    steps = itertools.count(1)

    def count(frame: Any, event: str, arg: Any) -> Any:
        if next(steps) > _MOST_STEPS:
            raise RuntimeError(f"it takes more than {_MOST_STEPS} steps")
        return count if frame.f_code.co_filename == "<template>" else None  # of all others, their calls

    with _MEMORY_LIMIT:
        tracer, (soft, hard) = sys.gettrace(), resource.getrlimit(resource.RLIMIT_AS)
        with contextlib.suppress(FileNotFoundError):  # only Linux says it, and only there the limit holds
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            most = pages * resource.getpagesize() + _MOST_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most if soft < 0 else min(soft, most), hard))
        sys.settrace(count)
        try:
            yield
        finally:
            sys.settrace(tracer)
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def control_tokens(tokenizer: Any) -> set[str]:
    """Return a tokenizer's special tokens."""
    added = tokenizer.added_tokens_decoder.values()
    return {token.content for token in added if token.special} | set(tokenizer.all_special_tokens)


def _unopened(before_answer: str) -> str:
    """Leave the tag by which a generation prompt opens a thought to the model: it has learnt to write it."""
    is_open = before_answer.count(_THINK) > before_answer.count(_UNTHINK)
    return before_answer[: before_answer.rindex(_THINK)] if is_open else before_answer


def is_answer_tag(token: str) -> bool:
    """Tell by its name whether a special token may stand in an answer: a thought, a call, a box, a point."""
    return bool(_TAG.search(token)) and not _REPLY.search(token)


def _answer(sampled: tuple[str, str], trained: Sequence[str] | None, end_of_turn: str) -> Iterator[Loss]:
    """Yield what training would lose of an answer.

    Args:
        sampled: what sampling reads before the question, and between it and its answer.
        trained: what stands in training before the question, between it and its answer, and after; None: the
            answer does not stand there once.
        end_of_turn: of it, "" where no control token ends the turn.
    """
    if trained is None:
        yield _loss("answer", "An assistant turn is refused or left out.", "writes the assistant's turn")
        return
    before_question, before_answer = sampled
    before, between, after = trained
    more = between.removeprefix(before_answer)
    if before != before_question or not between.startswith(before_answer):
        read, trained_on = (before_question, before_answer), (before, between)
        how = f"Around a question, sampling would read {read!r}, and training {trained_on!r}."
        yield _loss("generation prompt", how, "begins the assistant's turn as the generation prompt does")
    elif more.strip() and "".join(more.split()) != _THINK + _UNTHINK:
        how = f"It lacks {more!r}, which stands before an answer in training."
        yield _loss("generation prompt", how, "writes it in the generation prompt")
    if not end_of_turn:
        how = f"After an answer stands {after!r}, in which no control token ends the turn."
        yield _loss("end of turn", how, "ends the assistant's turn with a special token of the tokenizer")


def _loss(what: str, sentence: str, remedy: str) -> Loss:
    return Loss(what=what, sentence=sentence, remedy=_REPLACE.format(remedy))
