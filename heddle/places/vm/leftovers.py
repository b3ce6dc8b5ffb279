"""What killed builds and replays leave on the disk, and removing it.

A directory of a build or a replay is locked by its process, and the kernel removes the lock when that process ends
(base/mounts.py). So what has no lock belongs to no process, whatever pids are used again since; what has one is never
touched.
"""

from __future__ import annotations

from typing import Final

from heddle.base import mounts
from heddle.places.vm import buildspace, imagebuild, replay
from heddle.places.vm.imagecache import sweep_parts

_PREFIXES: Final = (imagebuild.SCRATCH, replay.SCRATCH)


def sweep() -> None:
    """Remove what killed builds and replays of this user left: incomplete images, and scratch directories."""
    sweep_parts()
    for prefix in _PREFIXES:
        mounts.sweep(prefix, buildspace.remove)
