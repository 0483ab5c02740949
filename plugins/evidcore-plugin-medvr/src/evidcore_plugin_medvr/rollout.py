"""Answers during which the model calls tools."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Ge

from evidcore.api import Episode, Prompt, RolloutStrategy, TextPart, Tool
from evidcore.case import Action, Part
from evidcore.contracts import Sampler
from evidcore.errors import EvidError, did_you_mean

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_LEVELS = 8  # that a call may nest; what writes and compares actions goes down them by recursion
_MOST_LETTERS = 400  # of an error: the model is told it in tokens of its context


class ToolCall(RolloutStrategy):
    """Let the model call tools while it answers.

    A call is written `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, after the thinking of its turn.
    The model is told its tools by its chat template, or in the words of the question where that knows none.
    The tool's text and images follow as a turn of their own, which is not trained. A call that cannot be
    carried out gets its error as the answer. What is answered is what the last turn says.
    """

    stop_texts = (CLOSE,)  # sampling pauses where one was written
    call_form = f'{OPEN}{{"name": "…", "arguments": {{…}}}}{CLOSE}'

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        max_tool_calls: Annotated[int, Ge(0)] = 2,
        spelling: Mapping[str, str] | None = None,
        show_tools: bool = True,
    ) -> None:
        """Take the tools.

        Args:
            tools: what may be called, by name.
            max_tool_calls: how many calls an answer may make; later ones are told that the budget is spent.
            spelling: other words for names of tools and of their arguments, such as
                `{ crop = "image_zoom_in_tool", box = "bbox_2d" }` for models that learnt these. Actions and
                tools' errors have the tools' own.
            show_tools: tell the model its tools, in some 150 tokens each. False where it has learnt by SFT to
                call them.
        """
        self.spelling = dict(spelling or {})
        self.tools: Mapping[str, Tool] = {self._spelt(tool.name): tool for tool in tools}
        self.max_tool_calls = max_tool_calls
        self.functions = tuple(self._function(tool) for tool in tools) if show_tools else ()
        known = {name for tool in tools for name in (tool.name, *tool.schema.get("properties", {}))}
        for word in self.spelling:
            if word not in known:
                hint = did_you_mean(word, known)
                raise ValueError(f"spelling: no tool and no argument is called {word!r}.{hint}")

    def __call__(self, sampler: Sampler, prompts: Sequence[Prompt], answers_per_prompt: int) -> list[Episode]:
        """Return the answers, grouped by prompt: those sampled from it, then forks, then what was left."""
        base = self._sampled_first(answers_per_prompt)
        groups = [[Episode(prompt=prompt)] * base for prompt in prompts]
        waiting = [(group, place) for group in range(len(groups)) for place in range(base)]
        while waiting:
            sampled = sampler.sample([groups[group][place] for group, place in waiting])
            forks = []
            for (group, place), episode in zip(waiting, sampled, strict=True):
                groups[group][place] = episode
                is_paused = not episode.finished and len(episode.actions) <= self.max_tool_calls
                if not is_paused or not sampler.text(episode).rstrip().endswith(CLOSE):
                    continue
                left = answers_per_prompt - len(groups[group])
                if left and (fork := self._forked(sampler, episode)) is not None:
                    forks.append((group, len(groups[group])))
                    groups[group].append(fork)
                groups[group][place] = self.replied(sampler, episode)
            waiting = sorted([at for at in waiting if _is_open(groups[at[0]][at[1]])] + forks)
            if not waiting:
                for group, own in enumerate(groups):
                    fresh = range(len(own), answers_per_prompt)
                    waiting += [(group, place) for place in fresh]
                    own += [Episode(prompt=prompts[group])] * len(fresh)
        return [episode for own in groups for episode in own]

    def _sampled_first(self, answers_per_prompt: int) -> int:
        """Return how many answers of a group are sampled from the prompt before any is forked."""
        return answers_per_prompt

    def _forked(self, sampler: Sampler, episode: Episode) -> Episode | None:
        """Return a fork of an episode that pauses behind a call, None for none."""
        return None

    def replied(self, sampler: Sampler, episode: Episode) -> Episode:
        """Return an episode with the answer to the call that it pauses behind."""
        action, parts = self._carry_out(sampler.text(episode), episode)
        try:
            return sampler.extend(episode, parts, [action])
        except EvidError:
            error = "the answer holds control tokens and cannot be shown."
            action = Action(tool=action.tool, arguments=action.arguments, error=error)
            return sampler.extend(episode, _told(error), [action])

    def _carry_out(self, turn: str, episode: Episode) -> tuple[Action, tuple[Part, ...]]:
        """Run the call at the end of a turn; what goes wrong is the answer."""
        name, arguments, error = _read_call(turn)
        if error is None and len(episode.actions) >= self.max_tool_calls:
            error = f"no calls left: {self.max_tool_calls} were allowed. Answer now."
        if error is None and name not in self.tools:
            hint = did_you_mean(name, self.tools)
            error = f"no tool is called {name!r}.{hint} Tools: {', '.join(self.tools)}."
        if error is None:
            own = {told: word for word, told in self.spelling.items()}
            tool, arguments = self.tools[name], {own.get(key, key): value for key, value in arguments.items()}
            name = tool.name
            try:
                return Action(tool=name, arguments=arguments), tool(arguments, episode.prompt)
            except (ValueError, EvidError) as cause:
                error = str(cause)
        if len(error) > _MOST_LETTERS:  # where it holds most of a long call
            half = _MOST_LETTERS // 2
            error = f"{error[:half]} … {error[-half:]}"
        return Action(tool=name, arguments=arguments, error=error), _told(error)

    def _function(self, tool: Tool) -> dict[str, Any]:
        """Return a tool as chat templates take it."""
        schema = dict(tool.schema)
        for key in ("properties", "required"):
            if isinstance(given := schema.get(key), Mapping):
                schema[key] = {self._spelt(name): item for name, item in given.items()}
            elif given is not None:
                schema[key] = [self._spelt(name) for name in given]
        function = {"name": self._spelt(tool.name), "description": tool.description, "parameters": schema}
        return {"type": "function", "function": function}

    def _spelt(self, word: str) -> str:
        return self.spelling.get(word, word)


def _told(error: str) -> tuple[Part, ...]:
    return (TextPart(text=f"error: {error}"),)


def _is_open(episode: Episode) -> bool:
    """Tell whether an episode goes on: tools have just replied, and it is not finished."""
    return not episode.finished and bool(episode.replies) and episode.replies[-1].stop == len(episode.ids)


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
    if not _is_shallow(call, _LEVELS):
        return "", {}, f"the call nests more than {_LEVELS} levels of lists and objects."
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return "", {}, 'the call must be {"name": "...", "arguments": {...}}.'
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return call["name"], {}, f"arguments must be an object, got {json.dumps(arguments)}."
    return call["name"], arguments, None


def _is_shallow(value: object, levels: int) -> bool:
    """Tell whether JSON nests at most so many levels of lists and objects."""
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in inner)
