"""A chroot is recognised, since no engine works in one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from heddle.base.resources import HERE
from heddle.host.engine.docker import check_engine_possible, in_chroot

pytestmark = pytest.mark.root

PROGRAM = "from heddle.host.engine.docker import in_chroot, check_engine_possible as check; print(in_chroot()); check()"


def test_the_root_of_a_namespace_is_no_chroot() -> None:
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    (part,) = {words[3] for words in lines if words[4] == "/"}
    if part != "/":
        pytest.skip(f"the root directory is {part} of a file system: these tests may run in a chroot")
    assert not in_chroot()
    check_engine_possible()


def test_an_engine_in_a_chroot_is_refused(tmp_path: Path) -> None:
    """A root directory of its own with everything of the machine's in it."""
    root = tmp_path / "root"
    root.mkdir()
    script = tmp_path / "script"
    script.write_text(
        """root=$1; shift
        mount -t tmpfs none "$root"
        for each in /*; do
            if [ -L "$each" ]; then cp -a "$each" "$root$each"
            elif [ -d "$each" ]; then mkdir "$root$each" && mount --rbind "$each" "$root$each"; fi
        done
        exec chroot "$root" "$@"
        """
    )
    program = ["env", f"PYTHONPATH={HERE.root}", sys.executable, "-c", PROGRAM]
    argv = ["unshare", "--mount", "sh", "-e", str(script), str(root), *program]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
    assert "a chroot" in done.stderr
    assert "cannot start a docker engine" in done.stderr
