"""Dialects: the variants of the rendered topology, for different versions and runtimes of containerlab.

In:  the options of the user, and the version of the installed containerlab.
Out: RenderOptions, frozen, for rendering; an InputError if that version or runtime does not support them.
Every supported containerlab accepts `linux`. `frr` uses containerlab's own FRR kind (0.80 and later). `c9s` leaves out
the keys that its Kubernetes runtime refuses. docs/bring-your-own.md has a table of dialects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final, Literal, get_args

from heddle.base import resources
from heddle.base.problems import InputError, Problem, Problems, did_you_mean, machine_errors

TEMPLATES: Final = resources.HERE.content(resources.TEMPLATES) / "image"
SWITCH: Final = "heddle/switch"
HOST: Final = "heddle/host"
REPOSITORIES: Final[Mapping[str, str]] = {"switch": SWITCH, "host": HOST}
PUBLIC_BASE: Final = "debian:trixie-slim"
_ENTRY: Final = "node.sh"


def image_names() -> Mapping[str, str]:
    """Role -> full name, computed from the files alone."""
    return {role: f"{repository}:{hash_of(role)}" for role, repository in REPOSITORIES.items()}


def hash_of(role: str) -> str:
    """12 hex digits of a hash of the Dockerfile, the file it copies, and its base image."""
    sum_ = hashlib.sha256()
    with machine_errors():
        for part in (dockerfile(role).read_bytes(), TEMPLATES.joinpath(_ENTRY).read_bytes(), PUBLIC_BASE.encode()):
            sum_.update(len(part).to_bytes(8, "big") + part)
    return sum_.hexdigest()[:12]


def dockerfile(role: str) -> Path:
    """The path of a role's Dockerfile."""
    return TEMPLATES / f"{role}.Dockerfile"


Version = tuple[int, int, int]
Dialect = Literal["linux", "frr", "c9s"]
Mgmt = Literal["own", "none"]
DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)
DEPLOYED: Final[tuple[Dialect, ...]] = tuple(each for each in DIALECTS if each != "c9s")  # those of `up`
MGMTS: Final[tuple[Mgmt, ...]] = get_args(Mgmt)

FRR_KIND: Final[Version] = (0, 80, 0)  # the first release that has `kind: frr` and `--runtime c9s`
KIND_KEYS: Final[Version] = (0, 81, 0)  # `extras.frr.daemons` became `daemons`, and the old spelling an error
PRIVILEGED: Final[Version] = (0, 78, 0)  # before it, every container was privileged and the key unknown
SKIP_WHEN_UNUSED: Final[Version] = (0, 76, 0)  # before it, the management network is created even if no node uses it
# Dialect -> the command that deploys its files, which the file itself names, too.
DEPLOY: Final[Mapping[Dialect, str]] = {
    "linux": "containerlab deploy",
    "frr": "containerlab deploy",
    "c9s": "containerlab --runtime c9s deploy",
}
# Rights of containers beside Docker's default. FRR's daemons end without one of theirs. With SYS_ADMIN a node can be
# root of the machine, so hosts do not have it.
HOST_CAPABILITIES: Final = ("NET_ADMIN", "NET_RAW")
SWITCH_CAPABILITIES: Final = ("NET_ADMIN", "SYS_ADMIN", "NET_RAW")
# Label of a node that is no part of the fabric: it runs the daemons of these switches, each in a VRF of its name.
DAEMONS_OF: Final = "heddle-daemons-of"
DAEMONS_IN: Final = "heddle-daemons-in"  # label of each of these switches: that node
NODE_MEMORY: Final = "1Gb"  # of a container with Heddle's image, which needs less than 100 MB


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Options of the rendered files; they do not change the fabric itself.

    dialect: see DIALECTS. mgmt: `own`, a management network for this lab alone, or `none`, no management network.
    subnet: overrides the computed management network. version: of the target containerlab; None is the newest.
    target: where a lab in shards runs, by the words of its runtime.
    """

    dialect: Dialect = "linux"
    mgmt: Mgmt = "own"
    subnet: IPv4Network | None = None
    version: Version | None = None
    target: Mapping[str, str] = field(default_factory=dict, hash=False)

    def takes(self, since: Version) -> bool:
        """Whether the target containerlab has the features of version `since`."""
        return self.version is None or self.version >= since


def render_options(
    dialect: str | None = None,
    mgmt: str = "own",
    subnet: IPv4Network | None = None,
    version: Version | None = None,
) -> RenderOptions:
    """Options from the command line; InputError with every unknown word.

    version: of the target containerlab. A version too old for the dialect is ignored here, since the user may render
    for another machine; `check_deployable` checks this one.
    """
    problems = Problems()
    word = DIALECTS[0] if dialect is None else dialect  # every version accepts `kind: linux`
    for flag, given, legal, why in (
        ("--dialect", word, DIALECTS, "is not a dialect"),
        ("--mgmt", mgmt, MGMTS, "is not a management network"),
    ):
        if given not in legal:
            problems.add(where="", what=f"{flag} {given}", why=why, hint=did_you_mean(given, legal))
    if (word, mgmt) == ("c9s", "none"):
        why = "is not possible with c9s: pods always have a network"
        problems.add(where="", what="--mgmt none", why=why, hint="leave --mgmt out")
    problems.raise_if_any()
    if version is not None and word != "linux" and version < FRR_KIND:
        version = None
    return RenderOptions(_DIALECT[word], _MGMT[mgmt], subnet, version)


_DIALECT: Final[Mapping[str, Dialect]] = {each: each for each in DIALECTS}
_MGMT: Final[Mapping[str, Mgmt]] = {each: each for each in MGMTS}


def check_deployable(options: RenderOptions, runtime: str, version: Version | None) -> None:
    """InputError when `up` cannot run the files rendered with these options; rendering them is always allowed.

    runtime: `netns` or `containerlab`. version: of the installed containerlab; None if unknown.
    """
    if options.dialect not in DEPLOYED:
        hint = "run ./inv render FABRIC --dialect c9s --out DIR, then `containerlab --runtime c9s deploy` there"
        raise InputError(Problem("", "--dialect c9s", "is for Kubernetes, where Heddle cannot bring up a lab", hint))
    if options.dialect == "frr" and runtime != "containerlab":
        hint = "leave --dialect out, or use --runtime containerlab"
        raise InputError(Problem("", "--dialect frr", f"needs runtime containerlab, not {runtime}", hint))
    if options.dialect == "frr" and version is not None and version < FRR_KIND:
        has = ".".join(str(part) for part in version)
        hint = "leave --dialect out: every version accepts linux"
        raise InputError(Problem("", "--dialect frr", f"needs containerlab 0.80 or newer; installed: {has}", hint))
