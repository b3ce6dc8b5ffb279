"""Which cluster runs a lab, and how: what `--context`, `--namespace`, `--image` and the other flags say."""

from __future__ import annotations

import os
import pwd
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final

from heddle.base import state
from heddle.base.problems import InputError, Problem, machine_errors
from heddle.base.userfiles import as_caller, caller, check_owner, make_dir

IMAGE: Final = "heddle-fabric:latest"  # of the project's Containerfile, as docs/kubernetes.md builds it
NAMESPACE: Final = "heddle"  # where the context has none
_OWNER: Final = "kubernetes-owner"  # in the state directory
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123 label
_IMAGE: Final = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9._:/@]{0,254}")


@dataclass(frozen=True, slots=True)
class KubeTarget:
    """A namespace of a cluster. context: of the kubeconfig; empty: the current one. image: of shards.

    pull_secret: the name of a Secret of the namespace with the registry's password; empty: none is needed.
    tunnel_port: UDP, of the tunnels between shards; empty: the default. pod: see manifests.read_pod; empty: none.
    """

    context: str = ""
    namespace: str = ""
    image: str = IMAGE
    pull_secret: str = ""
    tunnel_port: str = ""
    pod: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> KubeTarget:
        """From a record's options; others are ignored."""
        return cls(**{each.name: options[each.name] for each in fields(cls) if each.name in options})


def checked(target: KubeTarget) -> KubeTarget:
    """The target itself; InputError when a name cannot be one. They become part of paths and manifests."""
    names = {"--namespace": target.namespace, "--pull-secret": target.pull_secret}
    wrong = [
        Problem("", f"{flag} {name}", "is not a name of Kubernetes", "use lowercase letters, digits and hyphens")
        for flag, name in names.items()
        if name and _NAME.fullmatch(name) is None
    ]
    if _IMAGE.fullmatch(target.image) is None:
        wrong.append(Problem("", f"--image {target.image}", "is not the name of an image", f"use a name as {IMAGE}"))
    port = target.tunnel_port
    if port and not (port.isdecimal() and len(port) < 6 and 1 <= int(port) < 1 << 16):
        wrong.append(Problem("", f"--tunnel-port {port}", "is not a UDP port", "use 1 to 65535"))
    if wrong:
        raise InputError(*wrong)
    return target


def owner() -> str:
    """Who has the objects: the user's name and a random part, which is kept in the state directory.

    Two users of a namespace, and two state directories of a user, must not remove each other's labs.
    """
    path = state.state_dir() / _OWNER
    check_owner(path.parent)
    with machine_errors(str(path)), as_caller(path):
        found = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    if _NAME.fullmatch(found):
        return found
    user = caller() or pwd.getpwuid(os.getuid())
    name = re.sub(r"[^a-z0-9]+", "", user.pw_name.lower())[:24] or "user"
    made = f"{name}-{secrets.token_hex(4)}"
    make_dir(path.parent)
    state.write_file(path, f"{made}\n")
    return made
