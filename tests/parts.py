"""`--part K/N`: of the tests with the mark `deep` only the K-th of N parts; all others run in each part.

A run of all parts takes longer than a change should wait. CI runs one part with each change, the next change has the
next one (.ci/run). The part of a test follows from its name alone: it stays when other tests come and go. A module that
has the mark as a whole (`pytestmark`) is in one part: its tests share what takes long to make.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Part:
    """The number-th of total parts, from 1."""

    number: int
    total: int

    def has(self, name: str) -> bool:
        """Whether a test, or a module, is in this part."""
        return zlib.crc32(name.encode()) % self.total == self.number - 1


def part_of(text: str) -> Part:
    """`2/3`; pytest.UsageError for other text."""
    if found := re.fullmatch(r"([1-9]\d?)/([1-9]\d?)", text):
        part = Part(*map(int, found.groups()))
        if part.number <= part.total:
            return part
    raise pytest.UsageError(f"--part {text}: is not K/N with K from 1 to N; for example 2/3")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="of the tests with the mark deep: only the K-th of N parts")


def pytest_configure(config: pytest.Config) -> None:
    if text := config.getoption("--part"):
        part_of(text)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Which part this is, and how to run all."""
    text = config.getoption("--part")
    return [f"part {text} of the tests with the mark deep (all of them: ./inv test all)"] if text else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the deep tests of other parts."""
    if not (text := config.getoption("--part")):
        return
    part = part_of(text)
    kept = [item for item in items if not item.get_closest_marker("deep") or part.has(_name(item))]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=sorted(set(items).difference(kept), key=lambda item: item.nodeid))
        items[:] = kept


def _name(item: pytest.Item) -> str:
    module = item.getparent(pytest.Module)
    whole = module is not None and any(mark.name == "deep" for mark in module.own_markers)
    return item.nodeid.partition("::")[0] if whole else item.nodeid
