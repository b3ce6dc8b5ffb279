"""The VM from an installed wheel, also without root: in empty directories with a space in their paths."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from heddle_plugins.places.vm.image import VmImage, images_dir
from tests.ordinary import ID, OrdinaryUser, ordinary_user, python_of_all
from tests.wheels import InstalledWheel, install

pytestmark = [pytest.mark.timeout(1200), pytest.mark.root, pytest.mark.needs("mount"), pytest.mark.deep]


class Shop:
    """The wheel in an environment of its own, the user, and the cache of images, which the user may read only."""

    def __init__(self, user: OrdinaryUser, wheel: InstalledWheel) -> None:
        self.user, self.wheel, self.cache = user, wheel, user.spot / "a cache"
        (self.cache / "vm").mkdir(parents=True)
        self.env = {"HEDDLE_CACHE_DIR": str(self.cache)}

    def heddle(self, *words: str) -> str:
        """The output of a verb that succeeds."""
        before = f"mount --bind '{images_dir()}' '{self.cache}/vm'"
        done = self.user.run([str(self.wheel.program), *words], env=self.env, before=before)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert "./inv" not in done.stdout + done.stderr, words
        return done.stdout


def test_an_ordinary_user_runs_a_lab_in_the_vm_from_a_wheel(image: VmImage, wheel: Path) -> None:
    python = python_of_all()
    if python is None:
        pytest.skip(f"no Python 3.{sys.version_info.minor} that an ordinary user can start")
    assert (image.path / "image.json").stat().st_mode & 0o004, "others may read an image"
    with ordinary_user() as user:
        shop = Shop(user, install(wheel, user.spot / "an environment", python=python))
        try:
            shop.heddle("up", "tiny", "--on", "vm")
            run = json.loads(shop.heddle("run", "--on", "vm", "--size", "64K", "--format", "json"))
            assert [row["wrong"] for row in run["results"]] == [0]
            assert json.loads(shop.heddle("paths", "--on", "vm", "--format", "json"))["agree"] is True
            (guest,) = json.loads(shop.heddle("vm", "status", "--format", "json"))["guests"]
            assert Path("/proc", str(guest["pid"])).stat().st_uid == ID, "no process of root"
        finally:
            shop.heddle("vm", "down")
        assert [path.name for path in user.home.iterdir()] == [".local"], "the state directory is there"
