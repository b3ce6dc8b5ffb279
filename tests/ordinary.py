"""An ordinary user for tests of root: in a mount namespace whose files of users have one more, with a range of ids.

No user of this machine is added. The directory below /tmp can be read by all, as pytest's cannot.

    with ordinary_user() as user:
        done = user.run([program, "vm", "build"], cwd=user.home)
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NAME: Final = "heddletest"
ID: Final = 61234
_RANGE: Final = f"{NAME}:2000000:65536\n"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ADDED: Final = {
    "passwd": "{name}:x:{id}:{id}::{home}:/bin/sh\n",
    "group": "{name}:x:{id}:\n",
    "subuid": _RANGE,
    "subgid": _RANGE,
}


@dataclass(frozen=True)
class OrdinaryUser:
    """The user; spot: a directory that all can read; home: the user's, empty."""

    spot: Path

    @property
    def home(self) -> Path:
        return self.spot / "a home"

    def words(self, before: str = "") -> list[str]:
        """The words in front of a command of this user. before: shell commands of root, in the mount namespace."""
        files = self.spot / "files of users"
        lines = ["set -e", *(f"mount --bind '{files / name}' /etc/{name}" for name in _ADDED), before or ":"]
        change = f'exec setpriv --reuid={ID} --regid={ID} --clear-groups -- "$@"'
        script = "\n".join([*lines, change])
        return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script, "x"]

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """No variable of these tests, but those of pip."""
        pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "http"))}
        return {**pip, "PATH": _PATH, "HOME": str(self.home), "NO_COLOR": "1", **env}

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], before: str = "", timeout: float = 900
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in the home directory."""
        return subprocess.run(
            [*self.words(before), *argv], cwd=self.home, env=self.environment(env), capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=timeout, check=False,
        )  # fmt: skip


@contextmanager
def ordinary_user() -> Iterator[OrdinaryUser]:
    """The user, and the directory, which is removed with all that ids of the user's range have in it."""
    with tempfile.TemporaryDirectory(prefix="heddle test ") as spot:
        user = OrdinaryUser(Path(spot))
        user.spot.chmod(0o755)
        user.home.mkdir()
        os.chown(user.home, ID, ID)
        files = user.spot / "files of users"
        files.mkdir()
        for name, line in _ADDED.items():
            given = Path("/etc", name)
            before = given.read_text() if given.exists() else ""
            (files / name).write_text(before + line.format(name=NAME, id=ID, home=user.home))
        yield user


def python_of_all() -> str | None:
    """An interpreter of this version that an ordinary user can start; the one of these tests may be in root's home."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        asked = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r}); import numpy, pydantic"
        argv = ["setpriv", f"--reuid={ID}", f"--regid={ID}", "--clear-groups", "sh", "-c", '"$@"', "sh", python]
        if subprocess.run([*argv, "-c", asked], capture_output=True, check=False).returncode == 0:
            return python
    return None
