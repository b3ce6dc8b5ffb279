"""The names of the node images: computed from the files that they are built from, without asking an engine."""

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
