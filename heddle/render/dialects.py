"""Dialects: what the rendered topology is written for.

In:  what the user asked for, and the version of containerlab that is installed.
Out: RenderOptions, frozen, which rendering takes; an InputError where that version, or that runtime, cannot.
`linux` is the grammar that every supported containerlab takes. `frr` uses containerlab's own FRR kind (0.80 and later);
`c9s` leaves out what its Kubernetes runtime refuses. docs/containerlab.md has the table of what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Final, Literal, get_args

from heddle.base.problems import InputError, Problem, Problems, did_you_mean

Version = tuple[int, int, int]
Dialect = Literal["linux", "frr", "c9s"]
Mgmt = Literal["own", "none"]
DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)
MGMTS: Final[tuple[Mgmt, ...]] = get_args(Mgmt)

FRR_KIND: Final[Version] = (0, 80, 0)  # the first release that has `kind: frr` and `--runtime c9s`
KIND_KEYS: Final[Version] = (0, 81, 0)  # `extras.frr.daemons` became `daemons`, and the old spelling an error
PRIVILEGED: Final[Version] = (0, 78, 0)  # before it, every container was privileged and the key unknown
SKIP_WHEN_UNUSED: Final[Version] = (0, 76, 0)  # before it, the management network is made even where no node wants it
# The command that takes a file of each, as the file itself says.
DEPLOY: Final[Mapping[Dialect, str]] = {
    "linux": "containerlab deploy",
    "frr": "containerlab deploy",
    "c9s": "containerlab --runtime c9s deploy",
}


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """How a fabric is written down; what it is does not change.

    dialect: see DIALECTS. mgmt: `own`, a management network for this lab alone, or `none`, no node has one.
    subnet: in place of the computed management network. version: the containerlab to write for; None is the newest.
    """

    dialect: Dialect = "linux"
    mgmt: Mgmt = "own"
    subnet: IPv4Network | None = None
    version: Version | None = None

    def takes(self, since: Version) -> bool:
        """Whether the containerlab that is written for has what came with `since`."""
        return self.version is None or self.version >= since


def render_options(
    dialect: str | None = None,
    mgmt: str = "own",
    subnet: IPv4Network | None = None,
    version: Version | None = None,
) -> RenderOptions:
    """Options from words of the command line; InputError with every word that is none.

    version: the containerlab that is to take the file. One too old for the dialect is disregarded here: rendering for
    another machine is right, and `check_deployable` is for this one.
    """
    problems = Problems()
    word = dialect_for(version) if dialect is None else dialect
    for flag, given, legal, why in (
        ("--dialect", word, DIALECTS, "is no dialect"),
        ("--mgmt", mgmt, MGMTS, "is no management network"),
    ):
        if given not in legal:
            problems.add(where="", what=f"{flag} {given}", why=why, hint=did_you_mean(given, legal))
    if (word, mgmt) == ("c9s", "none"):
        why = "is not for c9s: the pods' network is always there"
        problems.add(where="", what="--mgmt none", why=why, hint="leave --mgmt out")
    problems.raise_if_any()
    if version is not None and word != "linux" and version < FRR_KIND:
        version = None
    return RenderOptions(_DIALECT[word], _MGMT[mgmt], subnet, version)


_DIALECT: Final[Mapping[str, Dialect]] = {each: each for each in DIALECTS}
_MGMT: Final[Mapping[str, Mgmt]] = {each: each for each in MGMTS}


def dialect_for(version: Version | None) -> Dialect:
    """What an installed containerlab is given unless --dialect says otherwise.

    `kind: linux` works on each of them; of `frr`, 0.80 and 0.81 take different spellings, and older ones none.
    """
    del version  # no version so far asks for another
    return "linux"


def check_deployable(options: RenderOptions, runtime: str, version: Version | None) -> None:
    """InputError when `up` cannot run what these options render; rendering it is always right.

    runtime: `netns` or `containerlab`. version: the installed containerlab's; None when it does not tell.
    """
    if options.dialect == "c9s":
        hint = "./inv render FABRIC --dialect c9s --out DIR writes it for `containerlab --runtime c9s deploy`"
        raise InputError(Problem("", "--dialect c9s", "is for Kubernetes, where Heddle brings nothing up itself", hint))
    if options.dialect == "frr" and runtime != "containerlab":
        hint = "leave --dialect out, or take --runtime containerlab"
        raise InputError(Problem("", "--dialect frr", f"is containerlab's own kind; runtime {runtime} has none", hint))
    if options.dialect == "frr" and version is not None and version < FRR_KIND:
        has = ".".join(str(part) for part in version)
        hint = "leave --dialect out: linux is taken by every version"
        raise InputError(Problem("", "--dialect frr", f"needs containerlab 0.80 or newer, and {has} is here", hint))
