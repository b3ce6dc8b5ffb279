"""Recipes of docs/recipes.md that need no more than namespaces: their commands, and the paths that they prove."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import pytest

from heddle.base.problems import InputError
from heddle.base.process import run
from heddle.lab.lab import Lab
from heddle.runs.store import paths_of
from heddle_plugins.attach.attaching import detach
from tests.recipes import followed, script

TCP = "Two namespaces over TCP"
OWN = {"blue": "heddleblue", "red": "heddlered"}


@pytest.fixture
def lab(tiny: Lab) -> Iterator[Lab]:
    """Nothing is attached after the test."""
    yield tiny
    with suppress(InputError):
        detach(tiny, [])
    for name in OWN.values():
        run(["ip", "netns", "del", name], check=False)


@pytest.mark.long("a recipe of a page; test_attached.py has the story of attach")
@pytest.mark.needs("iperf3")
def test_connections_of_a_foreign_program_are_those_that_are_proven(lab: Lab) -> None:
    text = script(TCP, running=lab.name, **OWN)
    done = followed(text)
    assert done.returncode == 0 and "the paths of 10 flows are proven" in done.stdout, done.stdout
    streams = set(map(int, re.findall(r"local 10\.0\.0\.1 port (\d+) connected to 10\.0\.1\.1 port 5201", done.stdout)))
    proofs = paths_of(lab).flows
    ports = {each.flow.sport for each in proofs if (each.flow.src, each.flow.dst) == ("host1", "host3")}
    control = ports - streams
    assert (len(streams), len(ports), len(control)) == (4, 5, 1), done.stdout
    assert all(each.predicted == each.measured and each.sent.packets for each in proofs)
    # Without `attach` the last command of the page fails.
    detach(lab, [])
    assert followed(text.splitlines()[-1]).returncode == 2
