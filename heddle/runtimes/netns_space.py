"""A node's path space: the directories that it sees instead of the machine's.

On the machine they are /run/heddle/LAB/NODE/{etc,run,log}; the node sees them at FRR's paths. Files that the topology
binds are mounted over them, directly from the rendered files: an edit of the rendered file changes the node's file.
A node with its own view of all files (netns_root.py) has these directories too, and its binds come from its view.
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.runtimes.netns_topology import Bind, NodeDef

RUN_DIR: Final = Path("/run/heddle")
# Not in a node's own view of all files: what is the kernel's, and /run, whose sockets lead to this machine's services.
_OTHERWISE: Final = re.compile(r"/(proc|sys|dev|run)(/|$)")
# FRR's paths, and the node's directory that replaces each.
PROVIDED: Final = {"/etc/frr": "etc", "/run/frr": "run", "/var/log/frr": "log"}


@dataclass(frozen=True, slots=True)
class Space:
    """The path space of one node."""

    lab: str
    node: str

    @property
    def directory(self) -> Path:
        """The node's directory on this machine."""
        return RUN_DIR / self.lab / self.node

    def outside(self, path: str) -> Path | None:
        """The node's `/run/frr/bgpd.vty` as a path of this machine; None for paths that the node shares with it."""
        for target, name in PROVIDED.items():
            if path.startswith(target + "/"):
                return self.directory / name / path[len(target) + 1 :]
        return None

    def mounts(self, node: NodeDef) -> list[tuple[str, str, bool]]:
        """(source, target, read only) in the order of mounting: directories, then the binds."""
        if not node.binds and not node.own_files:
            return []
        dirs = [(str(self.directory / name), target, False) for target, name in PROVIDED.items()]
        dirs = [each for each in dirs if node.binds or Path(each[0]).is_dir()]
        binds = [(str(b.source), b.target, b.read_only or not shown(b.source)) for b in node.binds]
        # A bind of a directory covers what was bound below it before.
        return dirs + (sorted(binds, key=lambda each: each[1].count("/")) if node.own_files else binds)


def shown(path: Path) -> bool:
    """Whether a node with its own view of all files sees a path of this machine there, and can write to it."""
    return not _OTHERWISE.match(str(path.resolve()))


def make_space(lab: str, node: NodeDef) -> None:
    """Make the node's directories and the mount points of its binds; MachineError names what is missing."""
    if not node.binds and not node.own_files:
        return
    owner = _frr_user(node)
    if owner is None:
        return
    space = Space(lab, node.name)
    with machine_errors():
        for name in PROVIDED.values():
            directory = space.directory / name
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o755)  # independent of the umask: daemons read here as user frr
            if name != "etc":
                os.chown(directory, owner.pw_uid, owner.pw_gid)
        if node.own_files and not (space.directory / "etc/daemons").exists():
            (space.directory / "etc/daemons").write_text(_packaged_daemons(), encoding="utf-8")
        for bind in node.binds:
            _make_target(space, bind, own_files=bool(node.own_files))


def _packaged_daemons() -> str:
    """The file `daemons` of an image that enables none: this machine's without the daemons enabled in it."""
    try:
        text = Path("/etc/frr/daemons").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return re.sub(r"^([a-z0-9]+d)=yes\b", r"\1=no", text, flags=re.MULTILINE)


def _frr_user(node: NodeDef) -> pwd.struct_passwd | None:
    """The user of the daemons; None for a node without binds, which needs no FRR.

    /run/frr need not exist (see enter.py); the package makes the other directories.
    """
    try:
        for target in ("/etc/frr", "/var/log/frr"):
            if not Path(target).is_dir():
                raise KeyError(target)
        return pwd.getpwnam("frr")
    except KeyError:
        if not node.binds:
            return None
        why, hint = "is not installed on this machine", "apt-get install frr"
        raise MachineError(Problem(node.name, "frr", why, hint)) from None


def _make_target(space: Space, bind: Bind, *, own_files: bool) -> None:
    if not bind.source.exists():
        raise MachineError(Problem(space.node, f"bind {bind.source}", "does not exist", "render the topology again"))
    spot = space.outside(bind.target)
    if spot is not None:
        if bind.source.is_dir():
            spot.mkdir(parents=True, exist_ok=True)
        else:
            spot.parent.mkdir(parents=True, exist_ok=True)
            spot.touch()
        return
    if own_files:  # enter.py makes it in the node's view
        return
    target = Path(bind.target)
    if not target.exists() or target.is_dir() != bind.source.is_dir():
        raise MachineError(
            Problem(
                space.node,
                f"bind {bind.target}",
                "cannot be provided: the machine has no such file or directory to mount over",
                "bind below " + ", ".join(PROVIDED) + ", or use the containerlab runtime",
            )
        )
