"""A node's path space: which directories it sees in place of the machine's.

On the machine they are /run/heddle/LAB/NODE/{etc,run,log}; the node sees them as FRR's own paths. Files that the
topology binds lie on top of them, straight from where they were rendered: editing the rendered file edits the node's.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.runtimes.netns_topology import Bind, NodeDef

RUN_DIR: Final = Path("/run/heddle")
# Where FRR is built to look, and the directory that stands there for a node.
PROVIDED: Final = {"/etc/frr": "etc", "/run/frr": "run", "/var/log/frr": "log"}


@dataclass(frozen=True, slots=True)
class Space:
    """The path space of one node."""

    lab: str
    node: str

    @property
    def directory(self) -> Path:
        """Where the node's directories are on this machine."""
        return RUN_DIR / self.lab / self.node

    def outside(self, path: str) -> Path | None:
        """The node's `/run/frr/bgpd.vty` as a path of this machine; None for what a node shares with it."""
        for target, name in PROVIDED.items():
            if path.startswith(target + "/"):
                return self.directory / name / path[len(target) + 1 :]
        return None

    def mounts(self, node: NodeDef) -> list[tuple[str, str, bool]]:
        """(source, target, read only) in the order of mounting: directories, then what is bound into them."""
        if not node.binds:
            return []
        dirs = [(str(self.directory / name), target, False) for target, name in PROVIDED.items()]
        return dirs + [(str(bind.source), bind.target, bind.read_only) for bind in node.binds]


def make_space(lab: str, node: NodeDef) -> None:
    """Make the node's directories and something to bind on; MachineError names what cannot be had."""
    if not node.binds:
        return
    owner = _frr_user(node.name)
    space = Space(lab, node.name)
    with machine_errors():
        for name in PROVIDED.values():
            directory = space.directory / name
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o755)  # whatever the umask says: daemons read here as user frr
            if name != "etc":
                os.chown(directory, owner.pw_uid, owner.pw_gid)
        for bind in node.binds:
            _make_target(space, bind)


def _frr_user(node: str) -> pwd.struct_passwd:
    """Daemons drop to this user; /run/frr need not be there (see enter.py), the others come with the package."""
    try:
        for target in ("/etc/frr", "/var/log/frr"):
            if not Path(target).is_dir():
                raise KeyError(target)
        return pwd.getpwnam("frr")
    except KeyError:
        raise MachineError(Problem(node, "frr", "is not installed on this machine", "apt-get install frr")) from None


def _make_target(space: Space, bind: Bind) -> None:
    if not bind.source.exists():
        raise MachineError(Problem(space.node, f"bind {bind.source}", "is not there", "render the topology anew"))
    spot = space.outside(bind.target)
    if spot is not None:
        if bind.source.is_dir():
            spot.mkdir(parents=True, exist_ok=True)
        else:
            spot.parent.mkdir(parents=True, exist_ok=True)
            spot.touch()
        return
    target = Path(bind.target)
    if not target.exists() or target.is_dir() != bind.source.is_dir():
        raise MachineError(
            Problem(
                space.node,
                f"bind {bind.target}",
                "cannot be provided: a namespace sees this machine's files, and there is none of that kind to cover",
                "bind below " + ", ".join(PROVIDED) + ", or use the containerlab runtime",
            )
        )
