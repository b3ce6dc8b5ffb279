"""Substitution in a containerlab file: environment variables, magic variables, and lab names.

In:  text of the file. Out: the text after containerlab's substitution.
Source: containerlab 0.79, core/file.go (envsubst, unset variables stay) and core/config.go (magicVarReplacer).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from heddle.base.problems import InputError, Problem
from heddle.base.state import caller_home

_VARIABLE: Final = re.compile(
    r"\$(?:(?P<dollar>\$)"
    r"|\{(?P<name>[^\W\d]\w*)(?:(?P<how>:=|:-|:\+|=|-|\+)(?P<other>[^}\n]*))?\}"
    r"|(?P<open>\{(?=[^\W\d]))"
    r"|(?P<bare>[^\W\d]\w*))"
)
_REFERENCE: Final = re.compile(r"\$([^\W\d]\w*)")
NODE_NAME: Final = "__clabNodeName__"
LAB_NAME: Final = "__clabLabName__"
# Directories that containerlab creates; namespaces have none.
DIRECTORIES: Final = ("__clabNodeDir__", "__clabDir__")
_LAB_LENGTH: Final = 12


def expand(text: str, source: str, variables: Mapping[str, str] | None = None) -> str:
    """`${VAR}`, `$VAR`, `${VAR:=default}` and `$$` as containerlab replaces them, in the whole text.

    A variable that is unset or empty and has no default stays, without its braces. InputError for an unclosed brace.
    """
    have = os.environ if variables is None else variables

    def value(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        if found["open"]:
            line = text.count("\n", 0, found.start()) + 1
            what = text[found.start() :].split("\n", 1)[0][:40]
            hint = "close it: ${NAME} or ${NAME:=default}; a dollar sign itself is $$"
            raise InputError(Problem(f"{source}:{line}", what, "is no valid variable", hint))
        name = found["bare"] or found["name"]
        if name == "_":
            return found[0]
        own = have.get(name, "")
        match found["how"]:
            case ":=" | ":-" | "=" | "-":
                unset = not own if found["how"] in (":=", ":-") else name not in have
                return _other(found["other"], have) if unset else own or f"${name}"
            case "+" | ":+":
                return _other(found["other"], have) if name in have else ""
            case _:
                return own or f"${name}"

    return _VARIABLE.sub(value, text)


def _other(text: str, have: Mapping[str, str]) -> str:
    """The default of a variable, which may be a variable itself."""
    found = _REFERENCE.fullmatch(text)
    return have.get(found[1], "") or text if found else text


def literal(text: str) -> str:
    """Text that `expand` turns back into the original."""
    return text.replace("$", "$$")


def magic(text: str, lab: str, node: str) -> str:
    """Replace the magic variables that do not depend on containerlab's directories."""
    return text.replace(NODE_NAME, node).replace(LAB_NAME, f"clab-{lab}")


def resolved(path: str, base: Path) -> Path:
    """A path of the file as an absolute path: `~` is the caller's home; others are relative to the file's directory."""
    if path == "~" or path.startswith("~/"):
        return caller_home() / path[2:]
    return Path(os.path.normpath(base / path))


def lab_name(wanted: str) -> str:
    """A valid lab name: lower-case letters and digits, a letter first, 12 at most. Empty when nothing is left."""
    word = re.sub(r"[^a-z0-9]", "", wanted.lower())
    return re.sub(r"^[0-9]+", "", word)[:_LAB_LENGTH]
