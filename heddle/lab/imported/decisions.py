"""Sysctls that an imported configuration sets itself: in `sysctls`, in commands, and in FRR's files.

In:  a NodeDescription.
Out: sysctl -> its settings, in the order of the sources. Heddle needs some sysctls, such as forwarding. A value that
the configuration sets has priority over Heddle's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from heddle.lab.imported.commands import command_lines, text_of
from heddle.lab.imported.description import NodeDescription
from heddle.lab.lab import Setting

# zebra sets these when it reads the line (zebra/ipforward_proc.c).
_FORWARDING: Final[Mapping[str, str]] = {"ip": "net.ipv4.ip_forward", "ipv6": "net.ipv6.conf.all.forwarding"}
_FRR_LINE: Final = re.compile(r"^(no[ \t]+)?(ip|ipv6)[ \t]+forwarding[ \t]*$", re.MULTILINE)
_FRR_FILES: Final = ("frr.conf", "zebra.conf")
# Both are one variable (net/ipv4/devinet.c, devinet_sysctl_forward).
_SAME: Final = ("net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding")
_KEY: Final = re.compile(r"net([./][A-Za-z0-9_-]+)+")
_VALUE: Final = re.compile(r"[A-Za-z0-9_\s-]+")
_PROC: Final = "/proc/sys/"


def settings_of(node: NodeDescription) -> dict[str, tuple[Setting, ...]]:
    """Sysctl -> the values that the node's configuration sets: `sysctls` first, then FRR's files, then commands."""
    found: dict[str, dict[Setting, None]] = {}
    for rows, certain in ((_file_settings(node), True), (_frr_settings(node), True), (_command_settings(node), False)):
        for key, value, source in rows:
            settings = found.setdefault(_SAME[0] if key in _SAME else key, {})
            settings[Setting(" ".join(value.split()), source, certain)] = None
    found |= {key: found[_SAME[0]] for key in _SAME if _SAME[0] in found}
    return {key: tuple(settings) for key, settings in found.items()}


def forwarding(node: NodeDescription) -> dict[str, str]:
    """Sysctl -> value, as FRR's files set it. A container may not write sysctls, but zebra does not write a value that
    is already correct. So a node that starts with these values works.
    """
    return {key: value for key, value, _ in _frr_settings(node)}


def _file_settings(node: NodeDescription) -> Iterator[tuple[str, str, str]]:
    yield from ((key, value, "sysctls") for key, value in node.sysctls.items())


def _frr_settings(node: NodeDescription) -> Iterator[tuple[str, str, str]]:
    for file in _FRR_FILES:
        for match in _FRR_LINE.finditer(node.text(file) or ""):
            yield _forwarding(match, f"{file}: {' '.join(match[0].split())}")


def _forwarding(match: re.Match[str], source: str) -> tuple[str, str, str]:
    return _FORWARDING[match[2]], "0" if match[1] else "1", source


def _command_settings(node: NodeDescription) -> Iterator[tuple[str, str, str]]:
    for command in node.commands:
        for line in command_lines(command, node.sources):
            yield from _line_settings(line, node.sources)


def _line_settings(words: list[str], sources: Mapping[str, Path]) -> Iterator[tuple[str, str, str]]:
    if not words:
        return
    program, line = words[0].rpartition("/")[2], " ".join(words)
    if program == "sysctl":
        yield from _assignments(words[1:], line)
        for option, file in pairwise(words):
            if option in ("-p", "--load") and file in sources and (text := text_of(sources[file])) is not None:
                rows = (row.partition("#")[0] for row in text.splitlines())
                yield from _assignments(rows, line)
    elif program == "vtysh":
        yield from (_forwarding(match, line) for word in words if (match := _FRR_LINE.fullmatch(word)))
    elif program in ("echo", "printf"):
        place = next((i for i, word in enumerate(words) if word == ">"), len(words))
        target = words[place + 1] if place + 1 < len(words) else ""
        if target.startswith(_PROC):
            value = " ".join(word for word in words[1:place] if not word.startswith("-"))
            yield from _assignments([f"{target.removeprefix(_PROC)}={value}"], line)


def _assignments(words: Iterable[str], source: str) -> Iterator[tuple[str, str, str]]:
    """`KEY=VALUE`, with dots or slashes; values that a shell would have to expand are skipped."""
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if equals and _KEY.fullmatch(key) and _VALUE.fullmatch(value):
            yield key.replace("/", "."), value, source
