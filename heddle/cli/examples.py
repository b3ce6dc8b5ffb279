"""Examples of each verb, from templates/help/examples.txt: what `./inv VERB --help` shows at its end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from heddle.base import resources


@cache
def examples() -> Mapping[str, Mapping[str, str]]:
    """Verb -> the words after it -> what the line does."""
    found: dict[str, dict[str, str]] = {}
    text = (resources.HERE.content("templates") / "help/examples.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line, does in zip(lines[::2], lines[1::2], strict=True):
        verb, _, words = line.removeprefix("./inv ").partition(" ")
        found.setdefault(verb, {})[words] = does.strip()
    return found


def examples_text(verb: str) -> str:
    """The part of a verb's help with its examples; empty for a verb without any. Fits into 80 columns."""
    lines = [f"  {example_line(verb, words)}\n      {does}" for words, does in examples().get(verb, {}).items()]
    return "\n".join(["", "Examples", *lines, ""]) if lines else ""


def example_line(verb: str, words: str) -> str:
    """The line as it is typed."""
    return f"./inv {verb} {words}".rstrip()
