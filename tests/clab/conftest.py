"""What is below here needs the real engine and the real containerlab; an engine that a run starts, it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from topologies.cli.progress import PlainObserver
from topologies.engine import binary, daemon, docker, images


@pytest.fixture(scope="session", autouse=True)
def engine(state_home: object) -> Iterator[None]:
    """An engine that answers, with the images in it. A machine where that cannot be is named, and skipped."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    wrong = docker.trouble()
    if wrong is not None and not docker.down():
        pytest.skip(str(wrong))
    if (wrong := binary.trouble()) is not None:
        pytest.skip(str(wrong))
    observer = PlainObserver(sys.stderr)
    with daemon.engine_running(observer):
        images.ensure_images(observer)
        yield


@pytest.fixture(autouse=True)
def no_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
