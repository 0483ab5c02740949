"""The form `<think>…</think><answer>…</answer>`: is it kept, and what stands inside; letters of options."""

import re
from collections.abc import Sequence

LETTERS = "ABCDEFGH"
STEM = "Which finding is present?"
TAG = re.compile(r"</?[A-Za-z_]+>")


def tag_fault(text: str, *, think: bool, pairs: Sequence[str] = ("answer",)) -> str | None:
    """Return why the tags of a text break the strict form, None where they do not.

    Strict: the whole text is one non-empty think pair (if asked for) and one of each of `pairs`, in their
    order; only white space around and inside the pairs is forgiven.
    """
    names = ["think"] * think + list(pairs)
    wanted = [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
    tags = TAG.findall(text)
    if tags != wanted:
        if not tags:
            return f"no tags, expected {''.join(wanted)}"
        if unknown := next((tag for tag in tags if tag not in wanted), None):
            return f"unexpected tag {shortened(unknown)}"
        if twice := next((tag for tag in wanted if tags.count(tag) > 1), None):
            return f"{tags.count(twice)} times {twice}, expected once"
        if missing := next((tag for tag in wanted if tag not in tags), None):
            return f"no {missing}"
        return f"tags in the order {''.join(tags)}, expected {''.join(wanted)}"
    pieces = [piece.strip() for piece in TAG.split(text)]
    if stray := next((piece for piece in pieces[0::2] if piece), None):
        return f"text outside the tags: {shortened(stray)!r}"
    return "the think text is empty" if think and not pieces[1] else None


def inside(text: str, tag: str) -> str | None:
    """Return what stands in the first closed pair of a tag, without white space around it."""
    content, closed, _ = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")
    return content.strip() if closed else None


def prose_fault(text: str) -> str | None:
    """Return why a text is no prose: it has no words, or tags; None where it is."""
    if not has_words(text):
        return f"no words: {shortened(text)!r}"
    tag = TAG.search(text)
    return f"prose holds no tags, got {shortened(tag.group())}" if tag else None


def has_words(text: str) -> bool:
    """Tell whether two letters stand together somewhere."""
    return re.search(r"[^\W\d_]{2}", text) is not None


def shortened(text: str, most: int = 40) -> str:
    """Return the beginning of a text, as messages show it."""
    return text if len(text) <= most else text[:most] + "…"
