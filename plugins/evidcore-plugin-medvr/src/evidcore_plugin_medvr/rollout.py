"""Answers during which the model calls tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Ge

from evidcore.case import Action, Episode, Part, Prompt, TextPart
from evidcore.contracts import RolloutStrategy, Sampler, Tool
from evidcore.errors import EvidError, did_you_mean

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class ToolCall(RolloutStrategy):
    """Let the model call tools while it answers.

    A call is written `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, after the thinking of its turn.
    The tool's text and images follow as a turn of their own, which is not trained. A call that cannot be
    carried out gets its error as the answer. What is answered is what the last turn says.
    """

    stop_texts = (CLOSE,)  # sampling pauses where one was written

    def __init__(self, tools: Sequence[Tool], *, calls: Annotated[int, Ge(0)] = 2) -> None:
        """Take the tools.

        Args:
            tools: what may be called, by name.
            calls: how many calls an answer may make; later ones are told that the budget is spent.
        """
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self.calls = calls

    def __call__(self, sampler: Sampler, prompts: Sequence[Prompt], answers_per_prompt: int) -> list[Episode]:
        """Return the answers, grouped by prompt."""
        episodes = [Episode(prompt=prompt) for prompt in prompts for _ in range(answers_per_prompt)]
        waiting = list(range(len(episodes)))
        while waiting:
            for place, sampled in zip(
                waiting, sampler.sample([episodes[place] for place in waiting]), strict=True
            ):
                episodes[place] = sampled
            going_on = []
            for place in waiting:
                episode = episodes[place]
                turn = sampler.text(episode)
                if episode.finished or not _ends_in_call(turn) or len(episode.actions) > self.calls:
                    continue
                action, parts = self._carry_out(turn, episode)
                try:
                    episodes[place] = sampler.extend(episode, parts, [action])
                except EvidError:
                    error = "the answer holds control tokens and cannot be shown."
                    action = Action(tool=action.tool, arguments=action.arguments, error=error)
                    episodes[place] = sampler.extend(episode, _told(error), [action])
                if not episodes[place].finished:
                    going_on.append(place)
            waiting = going_on
        return episodes

    def _carry_out(self, turn: str, episode: Episode) -> tuple[Action, tuple[Part, ...]]:
        """Run the call at the end of a turn; what goes wrong is the answer."""
        name, arguments, error = _read_call(turn)
        if error is None and len(episode.actions) >= self.calls:
            error = f"no calls left: {self.calls} were allowed. Answer now."
        if error is None and name not in self.tools:
            error = (
                f"no tool is called {name!r}.{did_you_mean(name, self.tools)} Tools: {', '.join(self.tools)}."
            )
        if error is None:
            try:
                return Action(tool=name, arguments=arguments), self.tools[name](arguments, episode.prompt)
            except (ValueError, EvidError) as cause:
                error = str(cause)
        return Action(tool=name, arguments=arguments, error=error), _told(error)


def _told(error: str) -> tuple[Part, ...]:
    return (TextPart(text=f"error: {error}"),)


def _ends_in_call(turn: str) -> bool:
    return turn.rstrip().endswith(CLOSE)


def _read_call(turn: str) -> tuple[str, dict[str, Any], str | None]:
    """Return name, arguments and what is wrong with the call at the end of a turn."""
    before, opened, text = turn.rstrip().removesuffix(CLOSE).rpartition(OPEN)
    if not opened:
        return "", {}, f"the call has no {OPEN} before its {CLOSE}."
    if before.rfind("<think>") > before.rfind("</think>"):
        return "", {}, "a call inside <think> is not carried out; close it with </think>, then call."
    try:
        call = json.loads(text)
        json.dumps(call, ensure_ascii=False).encode()  # refuses half a surrogate pair
    except json.JSONDecodeError as cause:
        return "", {}, f"the call is not JSON ({cause.msg} at character {cause.pos})."
    except (ValueError, RecursionError):
        return "", {}, "the call is JSON that cannot be read: too deep, too long a number, or broken letters."
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return "", {}, 'the call must be {"name": "...", "arguments": {...}}.'
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return call["name"], {}, f"arguments must be an object, got {json.dumps(arguments)}."
    return call["name"], arguments, None
