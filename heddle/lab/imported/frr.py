"""FRR in a node's files and commands: whether FRR runs there, what starts its daemons, and which addresses it sets.

In:  binds and commands of a node.
Out: results that need no running lab. The actual addresses are read later from the kernel.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Final

FRR_DIR: Final = "/etc/frr"
START: Final = "/run/frr/heddle-start.sh"  # path of Heddle's start script: /run/frr is separate for each node
DOCKER_START: Final = "/usr/lib/frr/docker-start"  # the start script of FRR's own images
REFUSED: Final = "/var/log/frr/heddle-refused"  # what vtysh reported of lines of frr.conf that it could not load
# All of FRR's daemons, in the order in which its own scripts start them.
DAEMONS: Final = (
    "mgmtd", "zebra", "staticd", "bgpd", "ospfd", "ospf6d", "isisd", "ripd", "ripngd", "eigrpd", "babeld", "pimd",
    "pim6d", "ldpd", "nhrpd", "sharpd", "pbrd", "bfdd", "fabricd", "vrrpd", "pathd",
)  # fmt: skip
ALWAYS: Final = ("mgmtd", "zebra", "staticd")  # started regardless of the file (frrcommon.sh, daemon_list)
_SERVICE: Final = re.compile(
    r"^(?:\S*/)?(?:service\s+frr|frrinit\.sh|rc-service\s+frr|systemctl\s+(?:\S+\s+)*frr(?:\.service)?)\b|/init\.d/frr\b"
    r"|docker-start\b"
)
# `bgpd=yes` is an edit of the file `daemons`.
_BY_HAND: Final = re.compile(r"\b(?:watchfrr|zebra|bgpd|ospfd|isisd|frrinit\.sh|service\s+frr|docker-start)\b(?!=)")
_ROUTERS: Final = re.compile(r"frr|quagga|(?<![a-z])bird|gobgp|exabgp|openbgpd|vyos|freertr", re.IGNORECASE)
_ROUTER: Final = re.compile(r"\brouter (bgp|ospf6?|isis|ripng|rip|eigrp|babel)\b")  # lines of a daemon's configuration
_ENABLED: Final = re.compile(r"\b([a-z0-9]+d)=(?:yes|true|1)\b")  # in commands that edit the file `daemons`
_INTERFACE: Final = re.compile(r"^interface[ \t]+(\S+)", re.MULTILINE)
_ADDRESS: Final = re.compile(r"^[ \t]+ip address (\d+\.\d+\.\d+\.\d+/\d+)", re.MULTILINE)
_ASSIGNED: Final = re.compile(r"^[ \t]*([a-z0-9]+)=[\"']?(\w+)", re.MULTILINE)


def is_service(command: str) -> bool:
    """True for a command that only starts or restarts FRR as a service."""
    return bool(_SERVICE.search(command.strip())) and not re.search(r"[;&|]", command)


def starts_frr(line: str) -> bool:
    """True for a command line that starts FRR's daemons, as a service or by name."""
    return bool(_BY_HAND.search(line)) or is_service(line)


def starts_itself(command: str, bound: Iterable[str]) -> bool:
    """True for any other command that starts daemons: by name, or by a script bound below /etc/frr."""
    if is_service(command):
        return False
    scripts = {target for target in bound if target.startswith(f"{FRR_DIR}/") and target.endswith(".sh")}
    return bool(_BY_HAND.search(command)) or any(script in command for script in scripts)


def routes(image: str) -> bool:
    """True for an image whose name is that of routing software."""
    return bool(_ROUTERS.search(image))


def daemons_in(commands: Iterable[str]) -> tuple[str, ...]:
    """The daemons that commands configure with vtysh, or enable in the file `daemons`; in FRR's order."""
    found = {f"{word}d" for line in commands if "vtysh" in line for word in _ROUTER.findall(line)}
    found |= {word for line in commands for word in _ENABLED.findall(line)}
    return tuple(daemon for daemon in DAEMONS if daemon in found)


def bound_file(binds: Mapping[str, Path], name: str) -> Path | None:
    """The source of a file of /etc/frr: bound itself, or in a bound directory; None when it is not bound.

    binds: target -> source.
    """
    if (own := binds.get(f"{FRR_DIR}/{name}")) is not None:
        return own
    directory = binds.get(FRR_DIR)
    return directory / name if directory is not None and (directory / name).is_file() else None


def daemons_of(text: str | None) -> tuple[str, ...]:
    """The daemons that a `daemons` file enables, and those that always run; in FRR's order."""
    words = dict(_ASSIGNED.findall(text or ""))
    return tuple(d for d in DAEMONS if d in ALWAYS or words.get(d, "no") not in ("no", "0"))


def configured_addresses(text: str) -> dict[str, IPv4Interface]:
    """Interface -> its first address, in an frr.conf."""
    found: dict[str, IPv4Interface] = {}
    parts = _INTERFACE.split(text)
    for name, block in zip(parts[1::2], parts[2::2], strict=False):
        own = re.split(r"^\S", block.partition("\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
        if match := _ADDRESS.search(own):
            _note(found, name, match[1])
    return found


def all_addresses(text: str) -> list[IPv4Interface]:
    """The addresses of all interfaces in an frr.conf."""
    found: dict[str, IPv4Interface] = {}
    for address in _ADDRESS.findall(text):
        _note(found, address, address)
    return [*found.values()]


def command_addresses(commands: Iterable[str]) -> dict[str, IPv4Interface]:
    """Interface -> its first address, from `ip addr add` and `ifconfig`, also inside `sh -c`."""
    found: dict[str, IPv4Interface] = {}
    for command in commands:
        try:
            words = shlex.split(command)
        except ValueError:
            continue
        lines = [words] if "-c" not in words[1:2] else [line.split() for line in re.split(r"&&|;|\n", words[-1])]
        for line in lines:
            if line[:1] == ["ip"]:
                _ip_addr(found, line)
            elif line[:1] == ["ifconfig"] and len(line) >= 3:
                _note(found, line[1], line[2])
    return found


def _ip_addr(found: dict[str, IPv4Interface], words: list[str]) -> None:
    plain = [word for word in words[1:] if not word.startswith("-")]
    known = len(plain) >= 3 and "address".startswith(plain[0]) and plain[1] in ("add", "a", "replace")
    if known and "dev" in plain[:-1]:
        _note(found, plain[plain.index("dev") + 1], plain[2])


def _note(found: dict[str, IPv4Interface], interface: str, address: str) -> None:
    try:
        found.setdefault(interface, IPv4Interface(address))
    except ValueError:
        return  # IPv6, or a variable: the address is read from the kernel later
