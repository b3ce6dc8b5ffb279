"""What experiments need of this machine: a need that is missing skips them, with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from heddle.kernel import rdma

ROOT: Final = "root"


def _root() -> str:
    return "" if os.geteuid() == 0 else "needs root: start it with sudo, or as root"


def _rxe() -> str:
    found = rdma.obstacle()
    return "" if found is None else f"{found.what} {found.why}".strip()


@cache
def _probed() -> Mapping[str, str]:
    from heddle.host.preflight import probe

    return probe()


def _kernel(name: str) -> Callable[[], str]:
    def missing() -> str:
        found = _probed().get(name, "was not tried")
        return "" if found == "ok" else f"the kernel has no {name}: {found}"

    return missing


# Word of `needs` -> the reason why it is missing; an empty text if it is there.
NEEDS: Final[Mapping[str, Callable[[], str]]] = {
    ROOT: _root,
    "rxe": _rxe,
    **{name: _kernel(name) for name in ("netem", "red", "ets", "clsact")},
}


def missing(needs: list[str]) -> str:
    """Why the first need is not met; empty if all are."""
    return next((why for each in needs if (why := NEEDS[each]())), "")
