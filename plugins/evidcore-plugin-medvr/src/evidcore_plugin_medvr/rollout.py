"""Answers during which the model calls tools."""

from __future__ import annotations

import dataclasses
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

    A call is written `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. The tool's text and images
    follow as a turn of their own, which is not trained. A call that cannot be carried out gets its error as
    the answer.
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
        turn_starts = [0] * len(episodes)
        waiting = list(range(len(episodes)))
        while waiting:
            for place, sampled in zip(
                waiting, sampler.sample([episodes[place] for place in waiting]), strict=True
            ):
                episodes[place] = sampled
            going_on = []
            for place in waiting:
                episode = episodes[place]
                call = _last_call(sampler.text(_turn(episode, turn_starts[place])))
                if episode.finished or call is None or len(episode.actions) > self.calls:
                    continue
                action, parts = self._carry_out(call, episode)
                extended = sampler.extend(episode, parts)
                episodes[place] = dataclasses.replace(extended, actions=(*episode.actions, action))
                turn_starts[place] = len(extended.ids)
                if not extended.finished:
                    going_on.append(place)
            waiting = going_on
        return episodes

    def _carry_out(self, text: str, episode: Episode) -> tuple[Action, tuple[Part, ...]]:
        """Run the call that `text` asks for; what goes wrong is the answer."""
        name, arguments, error = _read_call(text)
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
        return Action(tool=name, arguments=arguments, error=error), (TextPart(text=f"error: {error}"),)


def _turn(episode: Episode, start: int) -> Episode:
    """Return what was written from token `start` on, as an episode of its own."""
    return Episode(prompt=episode.prompt, ids=episode.ids[start:], loss_mask=episode.loss_mask[start:])


def _last_call(text: str) -> str | None:
    """Return what stands in the tool call at the end of `text`, None where there is none."""
    if not text.rstrip().endswith(CLOSE):
        return None
    return text[text.rfind(OPEN) + len(OPEN) :].rstrip()[: -len(CLOSE)] if OPEN in text else ""


def _read_call(text: str) -> tuple[str, dict[str, Any], str | None]:
    """Return name, arguments and what is wrong with a call."""
    try:
        call = json.loads(text)
    except json.JSONDecodeError as cause:
        return "", {}, f"the call is not JSON ({cause.msg} at character {cause.pos})."
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return "", {}, 'the call must be {"name": "...", "arguments": {...}}.'
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return call["name"], {}, f"arguments must be an object, got {json.dumps(arguments)}."
    return call["name"], arguments, None
