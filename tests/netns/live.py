"""What tests ask of a running lab, and do to it past Heddle, in a line each.

in_node(lab, "rtsw1", "ip link set eth1 down")
assert set(failed(lab)) == {"links", "routes"}
assert next_hops(lab, "rtsw1", 2) == {"eth2"}
assert document("fault", "down", "rtsw1:eth1", lab=lab)["down"] == ["rtsw1:eth1"]
with started("run", "--size", "16M", lab=lab) as process: ...
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from heddle.base.process import run
from heddle.checks.validate import validate
from heddle.kernel.fib import read_fib
from heddle.lab.lab import Lab
from tests.machine import child
from tests.netns.static_fabric import StaticLab
from tests.typed import typed

ROOT: Final = Path(__file__).resolve().parents[2]


def in_node(lab: Lab | StaticLab, node: str, command: str) -> str:
    """The output of a command of this machine in a node's network namespace. It must succeed."""
    return run(["nsenter", f"--net={lab.handle(node).netns}", *command.split()]).out


def failed(lab: Lab, only: Collection[str] | None = None) -> dict[str, str]:
    """Check of `validate` -> its detail, of those that are not passed. only: names of checks."""
    return {check.name: check.detail for check in validate(lab, only) if not check.ok}


def next_hops(lab: Lab, switch: str, rack: int) -> set[str]:
    """The ports by which a switch's kernel forwards to a rack."""
    routes = read_fib(lab.handle(switch)).routes.get(lab.fabric.prefixes[rack], ())
    return {hop.port for hop in routes if not hop.dead}


def document(*words: str, lab: Lab | None = None, ends: int = 0) -> dict[str, Any]:
    """The JSON document of a verb, which must end with this exit code."""
    done = typed(*_for(lab, words), "--format", "json")
    assert done.returncode == ends, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fault(lab: Lab, *words: str, ends: int = 0) -> dict[str, Any]:
    """The document of `./inv fault`."""
    return document("fault", *words, lab=lab, ends=ends)


def refused(*words: str, lab: Lab) -> str:
    """What a verb says of wrong words: exit code 2, and nothing on stdout. The lab is called tiny."""
    done = typed(*_for(lab, words))
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    return done.stderr.replace(lab.name, "tiny")


def _for(lab: Lab | None, words: Sequence[str]) -> list[str]:
    """A command line with --lab behind the verb."""
    return [words[0], *(() if lab is None else ("--lab", lab.name)), *words[1:]]


@contextmanager
def started(*words: str, lab: Lab | None = None, errors: int = subprocess.STDOUT) -> Iterator[subprocess.Popen[str]]:
    """A verb in a process of its own, for a with block that ends it. errors: where its stderr goes."""
    argv = [str(ROOT / "inv"), *_for(lab, words)]
    with child(argv, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        yield process
