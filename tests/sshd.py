"""An OpenSSH server of a test's own, on loopback: its host key, its settings, its users' keys, and a client's home.

    with ssh_server(tmp_path) as server:
        server.inv("status")                 # ./inv status --on ssh:root@127.0.0.1:PORT
        server.inv("status", place="here")

Nothing of the machine's own ~/.ssh or sshd is read or changed. It ends, with all of its sessions, with the block.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from heddle_plugins.places.sync import checkout_id, manifest_of
from tests.machine import children_of, patience

NEEDS = pytest.mark.needs("openssh-server", "openssh-client", "git")  # of modules whose tests log in
ROOT = Path(__file__).resolve().parent.parent
Done = subprocess.CompletedProcess[str]
# Connect as a verb does, and name the server that answered.
ASKS = """
import sys
from heddle.base.problems import HeddleError
from heddle_plugins.places.address import parse_address
from heddle_plugins.places.ssh import connection
try:
    with connection(parse_address(sys.argv[1])) as transport:
        channel = transport.open_session()
        channel.exec_command("ip -brief -4 address; echo $SSH_CONNECTION")
        print("answer", channel.makefile().read().decode())
except HeddleError as error:
    print("error", error)
"""


def sshd_path() -> str | None:
    """Where sshd is; Debian keeps it out of users' PATH."""
    return shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


@dataclass
class SshServer:
    """A running sshd, and the home of a client that it knows."""

    spot: Path
    port: int
    user: str
    project: Path
    process: subprocess.Popen[bytes]
    address: str = "127.0.0.1"
    env: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The argument of --on."""
        return f"ssh:{self.user}@{self.address}:{self.port}"

    @property
    def client_ssh(self) -> Path:
        """~/.ssh of the client."""
        return self.spot / "client home" / ".ssh"

    @property
    def cache(self) -> Path:
        """Where the server keeps what is brought to it."""
        return self.spot / "server cache"

    @property
    def log(self) -> str:
        """What sshd said."""
        return (self.spot / "sshd.log").read_text()

    def brought(self) -> Path:
        """The project as it stands on the server."""
        (found,) = self.cache.glob("heddle/place/*/project")
        return found

    def words(self, *typed: str, place: str | None = None) -> list[str]:
        """The command line of a verb with --on."""
        return [str(self.project / "inv"), typed[0], f"--on={place or self.place}", *typed[1:]]

    def inv(
        self, *typed: str, place: str | None = None, stdin: str | None = None, cwd: Path | None = None,
        env: Mapping[str, str] | None = None, timeout: float = 120,
    ) -> Done:  # fmt: skip
        """Run a verb over there to its end."""
        given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        return subprocess.run(
            self.words(*typed, place=place), capture_output=True, text=True, cwd=cwd or self.spot,
            env={**self.env, **(env or {})}, timeout=patience(timeout), check=False, **given,
        )  # fmt: skip

    def begin(self, *typed: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        """Start a verb over there, and do not wait for it."""
        return subprocess.Popen(
            self.words(*typed), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=cwd or self.spot, env=self.env, start_new_session=True,
        )  # fmt: skip

    def sessions(self) -> list[int]:
        """sshd's processes for connections: the children of the one that listens."""
        return children_of(self.process.pid)


def key(path: Path, kind: str = "ed25519", passphrase: str = "") -> str:
    """Make a key pair and return its public half."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    argv = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "heddle-test", "-f", str(path)]
    subprocess.run(argv, check=True)
    return Path(f"{path}.pub").read_text()


def copy_of_project(spot: Path) -> Path:
    """A checkout that may be changed, with the Python packages of this process (a link)."""
    for name in manifest_of(ROOT):
        (spot / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, spot / name, follow_symlinks=False)
    (spot / ".venv").symlink_to(sys.prefix)
    if shutil.which("git"):
        subprocess.run(["git", "-C", str(spot), "init", "-q"], check=True)
    return spot


@contextlib.contextmanager
def ssh_server(
    spot: Path,
    *,
    project: Path = ROOT,
    address: str = "127.0.0.1",
    before: Sequence[str] = (),
    lines: Sequence[str] = (),
) -> Iterator[SshServer]:
    """A server below `spot`, and a client that knows it and may log in. It has a .venv for the project already.

    before: words before sshd, such as those of a network namespace that has this address. lines: first in its settings.
    """
    program = sshd_path()
    assert program, "openssh-server is not installed"
    user = pwd.getpwuid(os.getuid()).pw_name
    cache, home, state = spot / "server cache", spot / "client home", spot / "server state"
    for directory in (cache, home, state):
        directory.mkdir(parents=True)
    settings = {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
    settings.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    settings |= {"XDG_CACHE_HOME": str(cache), "HEDDLE_STATE_DIR": str(state)}
    there = cache / "heddle" / "place" / checkout_id(project) / "project"
    there.mkdir(parents=True)
    (there / ".venv").symlink_to(sys.prefix)
    public = key(home / ".ssh" / "id_ed25519")
    (spot / "authorized_keys").write_text(public)
    lines = [
        *lines,
        f"ListenAddress {address}",
        "PidFile none",
        f'AuthorizedKeysFile "{spot}/authorized_keys"',
        "StrictModes no",  # below /tmp, which everybody may write
        f"UsePAM {'yes' if _locked(user) else 'no'}",  # without PAM a locked account cannot log in at all
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "SetEnv " + " ".join(f'"{name}={value}"' for name, value in settings.items()),
    ]
    host_key = key(spot / "host_ed25519")
    lines.append(f'HostKey "{spot}/host_ed25519"')
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd shuts its unprivileged half in
    port = _free_port()
    (spot / "sshd_config").write_text("\n".join([*lines, f"Port {port}"]) + "\n")
    with (spot / "sshd.log").open("wb") as log:
        process = subprocess.Popen(
            [*before, program, "-D", "-e", "-f", str(spot / "sshd_config")], stdin=subprocess.DEVNULL, stderr=log
        )
        try:
            assert until(lambda: "Server listening" in (spot / "sshd.log").read_text() or process.poll() is not None)
            assert process.poll() is None, (spot / "sshd.log").read_text()
            (home / ".ssh" / "known_hosts").write_text(f"[{address}]:{port} {' '.join(host_key.split()[:2])}\n")
            env = {k: v for k, v in os.environ.items() if not k.startswith(("SSH_", "HEDDLE_", "XDG_"))}
            env |= {"HOME": str(home), "HEDDLE_STATE_DIR": str(spot / "client state")}
            env.pop("CI", None)
            yield SshServer(spot, port, user, project, process, address, env)
        finally:
            for pid in (*children_of(process.pid), process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            process.wait(timeout=10)


def _locked(user: str) -> bool:
    try:
        rows = Path("/etc/shadow").read_text().splitlines()
    except OSError:
        return False
    return any(row.startswith(f"{user}:!") for row in rows)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(done: Callable[[], bool], seconds: float = 60) -> bool:
    """Wait for something; False when it does not come."""
    end = time.monotonic() + patience(seconds)
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
