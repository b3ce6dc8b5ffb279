"""A node's path space: the directories that it sees instead of the machine's.

On the machine they are /run/heddle/LAB/NODE/{etc,run,log}; the node sees them at FRR's paths. Files that the topology
binds are mounted over them, directly from the rendered files: an edit of the rendered file changes the node's file.
A node of an imported topology (label OWN_FILES) has these directories too, and its own view of all files: its root is
an overlay of this machine's root, so that no node changes this machine. RUN_DIR/LAB/.files is one tmpfs with what the
nodes write. For each node it has one directory per place that the node sees in its own way; its name is the place with
/ as %2F, and in it `view` is what the node gets: / and this machine's other file systems as overlays, /run and /dev as
private directories. An overlay cannot have its upper layer below its lower one (fs/overlayfs/super.c,
ovl_check_layer): hence the tmpfs. Two mounts must not share an upper layer: so overlays are mounted once, here, and
enter.py only binds them. Where the kernel has no overlayfs, the places are bound read-only (READ_ONLY).
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import shutil
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from heddle.base.mounts import mount_points
from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.kernel.libc import libc
from heddle.kernel.namespace import NETNS_DIR
from heddle.kernel.uapi import CLONE_NEWNS
from heddle.runtimes.netns_topology import READ_ONLY, Bind, NodeDef

RUN_DIR: Final = Path("/run/heddle")
# Not in a node's own view of all files: what is the kernel's, and /run, whose sockets lead to this machine's services.
_OTHERWISE: Final = re.compile(r"/(proc|sys|dev|run)(/|$)")
# FRR's paths, and the node's directory that replaces each.
_VRFS: Final = "vrfs"  # the directory of a node that runs the daemons of several switches: mount points
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

    def vrf_mounts(self, node: NodeDef) -> list[tuple[str, str, bool]]:
        """What zebra finds in /run/netns: a namespace for each of its switches, by the name of its VRF."""
        if not node.daemons_of:
            return []
        views = [(str(netns_path(self.lab, each)), f"{NETNS_DIR}/{each}", False) for each in node.daemons_of]
        return [(str(self.directory / _VRFS), str(NETNS_DIR), False), *views]


def netns_path(lab: str, node: str) -> Path:
    """The namespace of a node."""
    return NETNS_DIR / f"heddle-{lab}-{node}"


def shown(path: Path) -> bool:
    """Whether a node with its own view of all files sees a path of this machine there, and can write to it."""
    return not _OTHERWISE.match(os.path.realpath(path))


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
        for switch in node.daemons_of:
            (space.directory / _VRFS).mkdir(exist_ok=True)
            (space.directory / _VRFS / switch).touch()
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


_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 1, 32, 4096, 16384, 1 << 18, 2
# Not shown: file systems of containers and snaps, hundreds on some machines, which no program of a node needs.
_UNSEEN: Final = re.compile(r"/(snap|var/snap|var/lib/(docker|containerd?s?|kubelet|lxc|lxd|incus|snapd))(/|$)")
WRITABLE: Final = ("/run", "/dev", "/tmp", "/var/tmp")  # noqa: S108 - each node's own, also where the rest is read-only
_LARGEST_FILE: Final = 1 << 20  # of a file that is a mount itself, as /etc/hosts in a container: it is copied
_RUN_LEFT: Final = frozenset({"systemd", "heddle", "netns"})  # systemctl concludes from /run/systemd that systemd runs
# As containers have them, and what FRR, tunnels and RDMA need; no disks. Names with a / are in directories.
DEVICES: Final = (
    "null", "zero", "full", "random", "urandom", "tty", "fuse", "vhost-net", "net", "net/tun", "infiniband", "pts",
)  # fmt: skip
_DEVICE_LINKS: Final = {
    "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}  # fmt: skip


def files_dir(lab: str) -> Path:
    """Where the lab's nodes write."""
    return RUN_DIR / lab / ".files"


def job_root(lab: str, node: NodeDef) -> dict[str, Any]:
    """What enter.py needs to give a process the node's view: its root, its other places, its devices."""
    if not node.own_files:
        return {}
    home = files_dir(lab) / node.name
    places = sorted(unquote(each) for each in os.listdir(home)) if home.is_dir() else []  # noqa: PTH208 - quicker
    views = [(str(_view(home, each)), each) for each in places if each != "/"]
    devices = [name for name in DEVICES if "/" not in name]
    return {"root": {"view": str(_view(home, "/")), "places": views, "devices": devices}}


def make_views(lab: str, nodes: list[NodeDef]) -> None:
    """Mount the views of those of the nodes that have their own files. MachineError when the kernel refuses."""
    wanted = [node for node in nodes if node.own_files]
    if not wanted:
        return
    directory = files_dir(lab)
    with machine_errors(str(directory)):
        directory.mkdir(parents=True, exist_ok=True)
        if not directory.is_mount():
            _mount("tmpfs", directory, "tmpfs", data="mode=755")
        others = [(place, _is_directory(place)) for place in machine_places()]
        for node in wanted:
            _make_view(directory / node.name, node.own_files == READ_ONLY, others)


def remove_views(lab: str) -> None:
    """Unmount the lab's tmpfs with all that is mounted below it, also where a process still uses it."""
    directory = files_dir(lab)
    while not directory.is_symlink() and directory.is_mount():
        if libc.umount2(os.fsencode(directory), _MNT_DETACH) != 0:
            reason = os.strerror(ctypes.get_errno())
            hint = f"run umount --lazy {directory}, then ./inv down {lab} again"
            raise MachineError(Problem(lab, str(directory), f"cannot be unmounted: {reason}", hint))


def machine_places() -> list[str]:
    """Where this machine has mounted something that a node sees too, without `/`, in the order of mounting."""
    found: dict[str, None] = {}
    for place in map(str, mount_points()):
        if place != "/" and shown(Path(place)) and not _UNSEEN.match(place):
            found.pop(place, None)
            found[place] = None
    return list(found)


def why_read_only() -> str:
    """Why this kernel cannot give nodes an overlay of its root, tried in a mount namespace that ends with the trial.

    Empty when it can, and for a user who may not try.
    """
    found: list[str] = []

    def attempt() -> None:
        if libc.unshare(CLONE_NEWNS) != 0:
            return
        with suppress(FileNotFoundError):
            try:
                place = Path("/run")
                _mount("none", Path("/"), flags=_MS_REC | _MS_PRIVATE)
                _mount("tmpfs", place, "tmpfs")
                _overlay(Path("/"), place)
            except OSError as error:
                found.append("it has no overlayfs" if error.errno == 19 else f"its overlayfs fails: {error.strerror}")

    thread = threading.Thread(target=attempt)  # unshare moves one thread, which ends with its namespace
    thread.start()
    thread.join()
    return found[0] if found else ""


def _make_view(home: Path, read_only: bool, others: list[tuple[str, bool]]) -> None:
    root = _directory(home, "/")
    if not _view(home, "/").exists():
        _show(Path("/"), root, read_only)
    for place, directory in others:
        if directory and not (home / quote(place, safe="")).exists():
            with suppress(OSError):  # a file system that not even root may read (FUSE): the directory is empty then
                _show(Path(place), _directory(home, place), read_only)
        elif not directory and not read_only:
            _copy_file(Path(place), _view(home, "/"))
    for place, fill in (("/run", _fill_run), ("/dev", _fill_devices)):
        view = _view(home, place)
        view.mkdir(parents=True, exist_ok=True)
        fill(view)
    for place in WRITABLE[2:] if read_only else ():
        view = _view(home, place)
        view.mkdir(parents=True, exist_ok=True)
        view.chmod(0o1777)


def _show(place: Path, directory: Path, read_only: bool) -> None:
    """The overlay of a place, or where that is not possible (a vfat, an overlay of an overlay), the place read-only."""
    if not read_only:
        try:
            _overlay(place, directory)
            return
        except OSError:
            if place == Path("/"):
                raise
    view = directory / "view"
    view.mkdir(exist_ok=True)
    _mount(str(place), view, flags=_MS_BIND)
    _mount("none", view, flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY)


def _overlay(lower: Path, directory: Path) -> None:
    upper, work, view = (directory / name for name in ("upper", "work", "view"))
    for each in (upper, work, view):
        each.mkdir(exist_ok=True)
    there = lower.stat()
    upper.chmod(stat.S_IMODE(there.st_mode))  # an overlay's root has the mode and owner of its upper layer
    os.chown(upper, there.st_uid, there.st_gid)
    escaped = str(lower).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
    _mount("overlay", view, "overlay", data=f"lowerdir={escaped},upperdir={upper},workdir={work}")


def _fill_run(view: Path) -> None:
    """The directories of /run, empty: programs expect some, and sockets in them lead to this machine's services."""
    for entry in os.scandir("/run"):
        spot = view / entry.name
        if entry.is_dir(follow_symlinks=False) and entry.name not in _RUN_LEFT and not spot.exists():
            with suppress(FileNotFoundError):
                there = entry.stat()
                spot.mkdir()
                os.chown(spot, there.st_uid, there.st_gid)
                spot.chmod(stat.S_IMODE(there.st_mode))


def _fill_devices(view: Path) -> None:
    """Mount points of the devices that enter.py binds, and what else containers have in /dev."""
    for name in (each for each in DEVICES if "/" not in each and Path("/dev", each).exists()):
        if Path("/dev", name).is_dir():
            (view / name).mkdir(exist_ok=True)
        else:
            (view / name).touch()
    (view / "shm").mkdir(exist_ok=True)
    (view / "shm").chmod(0o1777)
    for name, target in _DEVICE_LINKS.items():
        if not (view / name).is_symlink():
            (view / name).symlink_to(target)


def _copy_file(place: Path, root: Path) -> None:
    """A file that is a mount itself shows what is below it in an overlay: copy it there."""
    with suppress(OSError):
        there = place.stat()
        if stat.S_ISREG(there.st_mode) and there.st_size <= _LARGEST_FILE:
            shutil.copyfile(place, root / place.relative_to("/"))


def _directory(home: Path, place: str) -> Path:
    directory = home / quote(place, safe="")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _view(home: Path, place: str) -> Path:
    return home / quote(place, safe="") / "view"


def _is_directory(place: str) -> bool:
    try:
        return Path(place).is_dir()
    except OSError:
        return True


def _mount(source: str, target: Path, kind: str = "none", flags: int = 0, data: str = "") -> None:
    """mount(2); OSError names the target."""
    words = (os.fsencode(word) for word in (source, str(target), kind))
    if libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(data) or None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {target}: {os.strerror(code)}")
