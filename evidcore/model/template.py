"""What a chat template writes around what is said, read off it once; and what it would lose.

A run writes its prompts, its training rows and its tool turns from `Turns`: the text of a prompt, the images
in it and the answer stand there as they are, and the template has written only what stands around them. So
training reads what sampling reads. `round_trip` renders turns of every role through the template and names
whatever does not come back. What would reach a run is refused; the rest is named, because others who read
the exported model render through the template.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from evidcore.errors import RunError

Form = Literal["text", "parts"]  # how a template takes what a turn says: a string, or a list of parts
Message = tuple[str, str]  # role and text

_ASK, _ANSWER, _TOOL = "ask-5d41", "answer-402a", "tool-bc4b"
_SYSTEM = "system-93fe"
_DAY = "day-7f0c"
_TEXT = 'Slice 12: 3.5 x 4 mm.\n\n- "left" & <right>, 5 %?\n  A) naïve'
_THOUGHT = "thought-61a8"
_THINK, _UNTHINK = "<think>", "</think>"
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
    """Something that does not come through a chat template as it went in."""

    what: str  # its name
    sentence: str
    remedy: str = ""  # "": a run does not pass it through the template, so nothing is lost there

    @property
    def refused(self) -> bool:
        """Tell whether it would reach what a run trains or samples."""
        return bool(self.remedy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundTrip:
    """What came back from a chat template."""

    turns: Turns | None  # None: something is refused
    losses: tuple[Loss, ...]

    @property
    def refused(self) -> tuple[Loss, ...]:
        """The losses that would reach what a run trains or samples."""
        return tuple(loss for loss in self.losses if loss.refused)


def read_turns(tokenizer: Any, chat_template: str | None = None, *, where: str) -> Turns:
    """Return what a tokenizer's chat template writes around what is said.

    Args:
        tokenizer: of the language model.
        chat_template: None: the tokenizer's own.
        where: what messages call the language model.

    Raises:
        RunError: if the template loses something that a run would train or sample; all of it is named.
    """
    found = round_trip(tokenizer, chat_template)
    if found.turns is None:
        said = "\n".join(f"    {loss.what}: {loss.sentence} {loss.remedy}" for loss in found.refused)
        count = "1 thing" if len(found.refused) == 1 else f"{len(found.refused)} things"
        raise RunError(
            f"{where}: its chat template cannot be used, {count} would be lost or altered:\n{said}"
        )
    return found.turns


def round_trip(tokenizer: Any, chat_template: str | None = None) -> RoundTrip:
    """Render system, user and assistant turns, with text and images, and name what does not come back.

    Args:
        tokenizer: of the language model.
        chat_template: None: the tokenizer's own.
    """
    template = chat_template or tokenizer.get_chat_template()
    return _Template(tokenizer, template).round_trip()


def told_functions(tokenizer: Any, chat_template: str, functions: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what a template writes before a question where it tells of functions; None where it does not."""
    template = _Template(tokenizer, chat_template)
    before, after = template.prompt_parts() or ("", "")
    told = template.render([("user", _ASK)], asks=True, tools=functions) or ""
    found, mark, rest = told.partition(_ASK)
    is_told = mark and rest == after and found != before
    return found if is_told and all(one["function"]["name"] in found for one in functions) else None


class _Template:
    """A chat template with the form in which it takes what is said."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        self.tokenizer, self.template = tokenizer, template
        self.form: Form = "text"
        self.failure = ""  # what the template said when it last refused

    def round_trip(self) -> RoundTrip:
        """Return what stands around what is said, and the losses."""
        parts = self.prompt_parts()
        if parts is None:
            how = (
                "A user turn is refused, left out or written twice, given as a string and as a list of parts"
                f"{f' ({self.failure})' if self.failure else ''}."
            )
            return RoundTrip(turns=None, losses=(_refused("question", how, "writes the user's text once"),))
        before, after = parts
        trained = self._split([("user", _ASK), ("assistant", _ANSWER)], (_ASK, _ANSWER), asks=False)
        again = self._split([("user", _ASK), ("assistant", _ANSWER), ("user", _TOOL)], (_ASK, _ANSWER, _TOOL))
        ended = "" if trained is None else self._up_to_control_token(trained[2])
        losses = (
            self._question(before + _TEXT + after),
            self._date(),
            *_answer((before, after), trained, ended),
            None if again else _refused("second question", _DEAF, "writes each turn once and in order"),
            self._white_space(),
            self._thought_removed(),
            self._system(),
            self._image(),
        )
        found = tuple(loss for loss in losses if loss is not None)
        if again is None or any(loss.refused for loss in found):
            return RoundTrip(turns=None, losses=found)
        turns = Turns(
            before_question=before, before_answer=after, end_of_turn=ended,
            after_answer=again[2], before_next_answer=again[3], form=self.form,
        )  # fmt: skip
        return RoundTrip(turns=turns, losses=found)

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        asks: bool = False,
        template: str = "",
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str | None:
        """Return what the template writes, None where it refuses; `asks`: the model's turn begins last."""
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [self._message(one) for one in messages],
                    chat_template=template or self.template,
                    add_generation_prompt=asks,
                    tokenize=False,
                    tools=None if tools is None else list(tools),
                )
            )
        except ImportError:
            raise  # jinja2 is missing or old
        except Exception as cause:  # a program of others: it may fail in any way at turns that it lacks
            self.failure = str(cause)
            return None

    def _message(self, message: Message | Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(message, Mapping):
            return dict(message)
        role, text = message
        return {"role": role, "content": text if self.form == "text" else [{"type": "text", "text": text}]}

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

    def _question(self, expected: str) -> Loss | None:
        if self.render([("user", _TEXT)], asks=True) == expected:
            return None
        how = f"The user's text {_TEXT!r} does not come back as it was."
        return _refused("question", how, "leaves text alone")

    def _date(self) -> Loss | None:
        chat = self.render([("user", _ASK)], asks=True, template=_CLOCK + self.template)
        if chat is None or _DAY not in chat:
            return None
        how = "It writes today's date: a run that goes on or is evaluated tomorrow would read other prompts."
        return _refused("date", how, "holds a fixed date or none")

    def _white_space(self) -> Loss | None:
        text = f" \n{_ASK}\n "
        if text in (self.render([("user", text)], asks=True) or ""):
            return None
        return Loss(what="white space", sentence="White space around the user's text is taken off.")

    def _thought_removed(self) -> Loss | None:
        last: list[Message] = [("user", _ASK), ("assistant", f"<think>{_THOUGHT}</think>{_ANSWER}")]
        lost = []
        for place, messages in (("the last answer", last), ("an earlier answer", [*last, ("user", _TOOL)])):
            chat = self.render(messages) or ""
            if last[1][1] not in chat:
                lost.append(f"{'rewritten in' if _THOUGHT in chat else 'removed from'} {place}")
        return Loss(what="answer's thought", sentence=f"It is {' and '.join(lost)}.") if lost else None

    def _system(self) -> Loss | None:
        chat = self.render([("system", _SYSTEM), ("user", _ASK)], asks=True)
        if chat is not None and _SYSTEM in chat:
            return None
        return Loss(what="system turn", sentence=f"It is {'refused' if chat is None else 'left out'}.")

    def _image(self) -> Loss | None:
        text = {"type": "text", "text": _ASK}
        shown = self.render([{"role": "user", "content": [{"type": "image"}, text]}], asks=True)
        without = self.render([{"role": "user", "content": [text]}], asks=True)
        if shown is None:
            how = "refused"
        elif "'type'" in shown or '"type"' in shown:
            how = "written as the data that stand for it"
        elif shown == without or _ASK not in shown:
            how = "left out"
        else:
            return None
        return Loss(what="image", sentence=f"An image part is {how}.")


def control_tokens(tokenizer: Any) -> set[str]:
    """Return a tokenizer's special tokens."""
    added = tokenizer.added_tokens_decoder.values()
    return {token.content for token in added if token.special} | set(tokenizer.all_special_tokens)


def _answer(sampled: tuple[str, str], trained: Sequence[str] | None, end_of_turn: str) -> Iterator[Loss]:
    """Yield what training would lose of an answer.

    Args:
        sampled: what sampling reads before the question, and between it and its answer.
        trained: what stands in training before the question, between it and its answer, and after; None: the
            answer does not stand there once.
        end_of_turn: of it, "" where no control token ends the turn.
    """
    if trained is None:
        yield _refused("answer", "An assistant turn is refused or left out.", "writes the assistant's turn")
        return
    before_question, before_answer = sampled
    before, between, after = trained
    more = between.removeprefix(before_answer)
    if before_answer.count(_THINK) > before_answer.count(_UNTHINK):
        ending = before_answer[before_answer.rindex(_THINK) :]
        how = (
            f"Its generation prompt ends in {ending!r}: an answer with its thought would open two, and what "
            "is sampled would lack the tag that a format reward asks for."
        )
        yield _refused("open thought", how, "begins the assistant's turn without opening a thought")
    elif before != before_question or not between.startswith(before_answer):
        read, trained_on = (before_question, before_answer), (before, between)
        how = f"Around a question, sampling would read {read!r}, and training {trained_on!r}."
        yield _refused("generation prompt", how, "begins the assistant's turn as the generation prompt does")
    elif "".join(more.split()) == _THINK + _UNTHINK:
        yield Loss(what="empty thought", sentence=f"An answer without a thought is given {more!r}.")
    elif more.strip():
        how = f"It lacks {more!r}, which stands before an answer in training."
        yield _refused("generation prompt", how, "writes it in the generation prompt")
    elif more:
        yield Loss(what="space", sentence=f"{more!r} stands before an answer in training.")
    if not end_of_turn:
        how = f"After an answer stands {after!r}, in which no control token ends the turn."
        yield _refused("end of turn", how, "ends the assistant's turn with a special token of the tokenizer")


def _refused(what: str, sentence: str, remedy: str) -> Loss:
    return Loss(what=what, sentence=sentence, remedy=_REPLACE.format(remedy))
