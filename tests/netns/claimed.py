"""Names for namespaces that tests make by hand, with a claim as labs of the pool have (plugins/testing/pool.py).

    with claimed() as lab:
        netns = namespace_of(lab, "rtsw1")        # /run/netns/heddle-LAB-rtsw1, as the netns runtime names it

If the process is killed, the next one on this machine that makes such namespaces or a lab of the pool removes them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from heddle.base import state
from heddle.kernel.namespace import NETNS_DIR
from heddle.runtimes.netns_cleanup import BPF_DIR, namespaces_of
from heddle_plugins.testing import pool as claims
from heddle_plugins.testing.pool import sweep


@contextmanager
def claimed(name: str = "") -> Iterator[str]:
    """A name for the length of a with block. The claim goes with the block, unless objects of that name are left.

    name: of `claims.new_name()`; by default a new one.
    """
    _sweep_once()
    name = name or claims.new_name()
    claims.claim(name, state.state_dir())
    try:
        yield name
    finally:
        if not namespaces_of(name) and not (BPF_DIR / name).exists():
            claims.unclaim(name)


def namespace_of(lab: str, node: str) -> Path:
    """Where the namespace of a node is."""
    return NETNS_DIR / f"heddle-{lab}-{node}"


@cache
def _sweep_once() -> None:
    sweep(warnings.warn)
