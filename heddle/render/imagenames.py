"""What the images of nodes are called: a function of the files that they are built from, so that no engine is asked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from heddle.base import resources
from heddle.base.problems import machine_errors

TEMPLATES: Final = resources.HERE.content(resources.TEMPLATES) / "image"
SWITCH: Final = "heddle/switch"
HOST: Final = "heddle/host"
REPOSITORIES: Final[Mapping[str, str]] = {"switch": SWITCH, "host": HOST}
PUBLIC_BASE: Final = "debian:trixie-slim"
_ENTRY: Final = "node.sh"


def image_names() -> Mapping[str, str]:
    """Role -> full name. A function of the files alone: no engine is asked."""
    return {role: f"{repository}:{hash_of(role)}" for role, repository in REPOSITORIES.items()}


def hash_of(role: str) -> str:
    """12 hex digits of the Dockerfile, what it copies, and what it is told."""
    sum_ = hashlib.sha256()
    with machine_errors():
        for part in (dockerfile(role).read_bytes(), TEMPLATES.joinpath(_ENTRY).read_bytes(), PUBLIC_BASE.encode()):
            sum_.update(len(part).to_bytes(8, "big") + part)
    return sum_.hexdigest()[:12]


def dockerfile(role: str) -> Path:
    """Where a role's Dockerfile is."""
    return TEMPLATES / f"{role}.Dockerfile"
