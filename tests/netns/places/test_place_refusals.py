"""--on ssh: refusals, each with its reason and a hint, against a real OpenSSH server on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from heddle.base.problems import MachineError
from heddle_plugins.places.address import parse_address
from heddle_plugins.places.session import AgentChannel
from heddle_plugins.places.ssh import connection
from tests.machine import patience
from tests.sshd import ASKS, NEEDS, ROOT, SshServer, key, until

pytestmark = [NEEDS, pytest.mark.deep]

Refused = Callable[..., str]


@pytest.fixture
def connect(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Log in and start the agent, as every verb does, with the client's home."""
    monkeypatch.setenv("HOME", server.env["HOME"])
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)

    def connect(place: str = server.place) -> None:
        with connection(parse_address(place)) as transport:
            AgentChannel(transport, place)

    return connect


@pytest.fixture
def refused(connect: Callable[..., None]) -> Callable[..., str]:
    """What a verb says that cannot go there."""

    def refused(*place: str) -> str:
        with pytest.raises(MachineError) as error:
            connect(*place)
        (problem,) = error.value.problems
        assert problem.hint
        return str(error.value)

    return refused


@contextlib.contextmanager
def changed(path: Path, text: str | None) -> Iterator[None]:
    """A file with another content, or not there, for a while."""
    before, mode = path.read_text(), path.stat().st_mode
    path.write_text(text) if text is not None else path.unlink()
    try:
        yield
    finally:
        path.write_text(before)
        path.chmod(mode)


def test_keys_that_are_refused_locked_or_missing_are_named(
    server: SshServer, connect: Callable[..., None], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    with changed(server.spot / "authorized_keys", ""):
        text = refused()
    assert f"refuses the login of {server.user}; tried: {server.client_ssh}/id_ed25519" in text
    assert f"run ssh-copy-id -p {server.port} {server.user}@127.0.0.1 to install your key" in text
    own, locked, agent = server.client_ssh / "id_ed25519", server.client_ssh / "id_ecdsa", server.spot / "agent"
    with changed(own, None):
        assert "tried: no key" in refused()
    key(locked, "ecdsa", "a passphrase")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent)], stdout=subprocess.DEVNULL)
    try:
        connect()  # the other key does
        assert until(agent.exists, 10)
        env = {**server.env, "SSH_AUTH_SOCK": str(agent)}
        subprocess.run(["ssh-add", "-q", str(own)], env=env, check=True)
        with changed(own, None):
            assert f"{locked} (it needs its passphrase)" in refused()
            monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
            connect()
    finally:
        locked.unlink()
        process.terminate()
        process.wait()


def test_host_keys_are_refused_until_the_user_accepts_them_as_the_hint_says(
    server: SshServer, connect: Callable[..., None], refused: Refused
) -> None:
    known, other = server.client_ssh / "known_hosts", key(server.spot / "other_host").split()
    argv = ["ssh-keygen", "-lf", str(server.spot / "host_ed25519.pub")]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[1]
    with changed(known, f"[127.0.0.1]:{server.port} {other[0]} {other[1]}\n"):
        for why, command in (
            (f"{known}:1  {server.place} PRESENTS A HOST KEY THAT DIFFERS FROM THE KNOWN ONE", "ssh-keygen"),
            (f"is not a known host; it presents ssh-ed25519 {shown}", "ssh-keyscan"),
        ):
            text = refused()
            assert why in text
            hint = next(line.strip() for line in text.splitlines() if line.strip().startswith(command))
            subprocess.run(["sh", "-c", hint], env=server.env, check=True, capture_output=True)
        connect()
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
        assert "127.0.0.1" not in known.read_text()
        connect()
        known.write_text(known.read_text() + "@revoked * " + (server.spot / "host_ed25519.pub").read_text())
        assert "PRESENTS A REVOKED HOST KEY" in refused()


def test_settings_of_openssh_and_the_config_file_are_used(server: SshServer, tmp_path: Path) -> None:
    config = server.client_ssh / "config"
    config.write_text(f"Host lab\n  HostName 127.0.0.1\n  Port {server.port}\n  User {server.user}\n")
    own = tmp_path / "config.yml"
    own.write_text("place: ssh:lab\n")
    env, before = {**server.env, "HEDDLE_CONFIG": str(own)}, server.log.count("Accepted")
    try:
        for words in (["status"], ["status", "--on=here"]):
            subprocess.run([str(server.project / "inv"), *words], env=env, capture_output=True, check=True)
            assert server.log.count("Accepted") == before + 1
    finally:
        config.unlink()


def test_a_server_that_does_not_answer_is_reported(server: SshServer, refused: Callable[..., str]) -> None:
    wall = "ip link add wall0 type veth peer name wall1 && ip link set wall0 up && ip link set wall1 up"
    wall += " && ip address add 198.51.100.1/24 dev wall0"
    wall += " && ip neighbour add 198.51.100.2 dev wall0 lladdr 02:00:00:00:00:02"
    with socket.socket() as closed, socket.socket() as silent, ThreadPoolExecutor(2) as both:
        closed.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        without_route, behind_a_wall = (both.submit(alone, server, prepared) for prepared in ("true", wall))
        port = closed.getsockname()[1]
        assert f"cannot be reached at 127.0.0.1 port {port}: Connection refused" in refused(f"ssh:127.0.0.1:{port}")
        assert "Error reading SSH protocol banner" in refused(f"ssh:127.0.0.1:{silent.getsockname()[1]}")
        assert "cannot be reached at no.such.host.invalid" in refused("ssh:no.such.host.invalid")
        assert "port 22: Network is unreachable" in without_route.result()
        assert "port 22: timed out" in behind_a_wall.result()


def alone(server: SshServer, prepared: str) -> str:
    """What a verb says in a network of its own, where there is no server."""
    words = ["unshare", "-n", "sh", "-ec", prepared + ' && exec "$@"', "sh"]
    words += [sys.executable, "-c", ASKS, "ssh:198.51.100.2"]
    done = subprocess.run(
        words, env=server.env, cwd=ROOT, capture_output=True, text=True, timeout=patience(60), check=False
    )
    return done.stdout + done.stderr


@pytest.mark.needs("mount")
@pytest.mark.long("10 seconds and more")
def test_a_server_without_disk_space_python_or_commands_is_reported(
    server: SshServer, connect: Callable[..., None], refused: Refused
) -> None:
    cache = server.cache / "heddle" / "place"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "heddle-test", str(cache)], check=True)
    try:
        done = server.inv("status", "--format=json")
    finally:
        subprocess.run(["umount", str(cache)], check=True)
    (problem,) = json.loads(done.stdout)["error"]["problems"]
    assert "No space left on device" in problem["why"]
    assert "free some space there" in problem["hint"]
    keys, config = server.spot / "authorized_keys", server.spot / "sshd_config"
    for command, why in (
        ("exit 127", "does not run python3: exit code 127"),
        ("echo This account is not available.; exit 1", "exit code 1, This account is not available."),
        ("yes", "does not run python3"),
    ):
        with changed(keys, f'command="{command}" ' + keys.read_text()):
            assert why in refused()
    with changed(keys, 'command="echo welcome; echo hi >&2; eval \\"$SSH_ORIGINAL_COMMAND\\"" ' + keys.read_text()):
        done = server.inv("status")
        assert (done.stdout.startswith("no lab is running"), done.stderr) == (True, ""), "a login's output is left out"
    with changed(config, "MaxSessions 0\n" + config.read_text()):
        reread(server)
        assert "ForceCommand and MaxSessions" in refused()
    reread(server)


def reread(server: SshServer) -> None:
    """Let sshd read its settings again."""
    count = server.log.count("Server listening")
    os.kill(server.process.pid, signal.SIGHUP)
    assert until(lambda: server.log.count("Server listening") > count, 20)


def test_a_reader_that_goes_away_is_no_trouble(server: SshServer) -> None:
    inv = server.begin("up", "zone", "--dry-run")
    assert inv.stdout
    inv.stdout.close()
    assert inv.wait(timeout=patience(60)) == 141
