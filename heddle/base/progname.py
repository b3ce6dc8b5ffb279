"""The name by which Heddle was started: `./inv` in a checkout, `heddle` where a wheel is installed.

Texts in the code say `./inv VERB`, and name pages of the manual as `docs/NAME.md`, whatever the layout. They pass
through `as_started` where they are printed (heddle/base/problems.py). So no other module knows the name, and the text
that a user reads can be typed: a wheel has no docs/ beside it, but `heddle explain docs/NAME.md` prints the page.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Final

VARIABLE: Final = "HEDDLE_PROGRAM"  # of child processes, and of the verb that --on runs on a lab server
CHECKOUT: Final = "./inv"
INSTALLED: Final = "heddle"
# As a word: not `x./inv`, `./inventory`, or `./inv/x`. A full stop may follow it at the end of a sentence.
_WORD: Final = re.compile(r"(?P<sudo>\bsudo )?(?<![\w./-])\./inv(?![\w/-]|\.\w)")
# A page, perhaps with an anchor; not one that is the word of a command already.
_PAGE: Final = re.compile(r"(?<![\w./-])(?<!explain )docs/[a-z0-9-]+\.md(?![\w])(?:#[\w-]+)?")
_of_layout = CHECKOUT


def layout_is_installed() -> None:
    """Take `heddle` as the name unless the environment says otherwise; heddle/base/resources.py knows the layout."""
    global _of_layout  # noqa: PLW0603  (the layout is a fact of the process)
    _of_layout = INSTALLED


def program() -> str:
    """`./inv` or `heddle`."""
    named = os.environ.get(VARIABLE, "")
    return named if named in (CHECKOUT, INSTALLED) else _of_layout


def as_started(text: str) -> str:
    """The text with `./inv` replaced by the name that this program was started by; behind `sudo` by its path.

    sudo has a PATH of its own, in which the `heddle` of a virtual environment is not found. Where the program is not
    `./inv`, a page of the manual becomes the command that prints it.
    """
    if program() == CHECKOUT:
        return text
    if "docs/" in text:
        text = _PAGE.sub(lambda found: f"{INSTALLED} explain {found[0]}", text)
    if CHECKOUT not in text:
        return text
    return _WORD.sub(lambda found: f"sudo {path()}" if found["sudo"] else INSTALLED, text)


def path() -> str:
    """The installed program's path as a word for a shell, or its name when there is no telling."""
    started = Path(sys.argv[0])
    beside = Path(sys.executable).with_name(INSTALLED)
    if started.name == INSTALLED and started.is_file():
        return shlex.quote(str(started.absolute()))
    return shlex.quote(str(beside)) if beside.is_file() else INSTALLED
