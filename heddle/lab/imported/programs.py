"""Programs of a topology's commands: in a namespace they are this machine's, whatever is in the node's image."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Sequence
from functools import lru_cache

from heddle.host import packages
from heddle.lab.imported import frr


def absent_program(command: str, earlier: Sequence[str], targets: Iterable[str]) -> str:
    """The program of a command if a node in a namespace cannot have it; else empty.

    earlier: the node's commands before this one, which may create the program; targets: those of its binds. A path is
    not judged: more than these can create it. What Heddle needs itself is installed before a lab is created.
    """
    name = _not_here(command, os.environ.get("PATH", os.defpath))
    if not name or frr.is_service(command):
        return ""
    if any(name in packages.PARTS[part].programs for part in packages.FABRIC):
        return ""
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    bound = any(target in places or os.path.basename(target) == name for target in targets)  # noqa: PTH119
    return "" if bound or any(re.search(rf"\b{re.escape(name)}\b", line) for line in earlier) else name


@lru_cache(4096)  # all nodes often have the same commands
def _not_here(command: str, places: str) -> str:
    """The program of a command if it is in no directory of `places`, and not FRR's; empty for a path."""
    name = shlex.split(command)[0]
    if "/" in name or name in ("vtysh", "watchfrr", *frr.DAEMONS) or shutil.which(name, path=places):
        return ""
    return name
