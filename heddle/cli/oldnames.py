"""Names of verbs and flags in the version before: they work for one version, with a note on stderr."""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import Final

from heddle.base.progname import as_started

OLD: Final = {"check": "impact", "place": "schedule", "--place": "--on"}  # old name -> name


def present_name(word: str, known: Container[str], *, noted: bool = True) -> str:
    """The name of a verb or flag that was typed by its old name, with a note; any other word unchanged.

    known: the names of now. One that a plugin has given to a verb is not old.
    """
    new = OLD.get(word, word)
    if word in known or new not in known:
        return word
    if noted and new != word:
        print(as_started(f"note: {word} is now {new}; the old name works in this version only"), file=sys.stderr)
    return new
