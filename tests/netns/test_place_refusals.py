"""--place ssh: refusals, each with its reason and a hint, against a real OpenSSH server on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.machine import patience
from tests.sshd import NEEDS, SshServer, key, ssh_server, until

pytestmark = NEEDS


def refused(server: SshServer, *typed: str, place: str | None = None) -> str:
    """What a verb says that cannot go there: exit code 3, and the same as JSON."""
    with ThreadPoolExecutor(2) as both:
        text = both.submit(server.inv, *(typed or ("status",)), place=place, timeout=60)
        machine = both.submit(server.inv, "status", "--format=json", place=place, timeout=60)
    done, document = text.result(), json.loads(machine.result().stdout)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    (problem,) = document["error"]["problems"]
    assert (document["error"]["kind"], problem["hint"] != "") == ("MachineError", True)
    assert problem["why"] in done.stderr
    return done.stderr


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


@pytest.mark.deep
def test_a_wrong_key_is_refused_with_its_name(server: SshServer) -> None:
    with changed(server.spot / "authorized_keys", ""):
        said = refused(server)
    assert f"refuses the login of {server.user}; keys tried: ~/.ssh/id_ed25519\n" in said
    assert f"run ssh-copy-id -p {server.port} {server.user}@127.0.0.1 to install your key" in said


@pytest.mark.deep
def test_without_a_key_it_is_said_where_keys_are_looked_for(server: SshServer) -> None:
    with changed(server.client_ssh / "id_ed25519", None):
        assert "no key in an SSH agent, nor at ~/.ssh/id_ed25519, ~/.ssh/id_ecdsa, ~/.ssh/id_rsa" in refused(server)


@pytest.mark.deep
def test_a_key_with_a_passphrase_is_named(server: SshServer) -> None:
    locked = server.client_ssh / "id_ecdsa"
    key(locked, "ecdsa", "a passphrase")
    try:
        assert server.inv("status").returncode == 0  # the other key does
        with changed(server.client_ssh / "id_ed25519", None):
            said = refused(server)
        assert "run ssh-add ~/.ssh/id_ecdsa, because ~/.ssh/id_ecdsa needs its passphrase" in said
    finally:
        locked.unlink()


@pytest.mark.deep
def test_keys_of_an_agent_are_used(server: SshServer) -> None:
    sock = server.spot / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    try:
        assert until(sock.exists, 10)
        env = {**server.env, "SSH_AUTH_SOCK": str(sock)}
        subprocess.run(["ssh-add", "-q", str(server.client_ssh / "id_ed25519")], env=env, check=True)
        with changed(server.client_ssh / "id_ed25519", None):
            assert server.inv("status").returncode == 3
            assert server.inv("status", env={"SSH_AUTH_SOCK": str(sock)}).returncode == 0
    finally:
        agent.terminate()
        agent.wait()


def test_an_unknown_host_is_refused_with_its_fingerprint_and_how_to_accept_it(server: SshServer) -> None:
    known = server.client_ssh / "known_hosts"
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(server.spot / "host_ed25519.pub")], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    with changed(known, ""):
        said = refused(server)
        assert f"is not a known host; it presents ssh-ed25519 {shown}" in said
        command = next(line.strip() for line in said.splitlines() if "ssh-keyscan" in line)
        subprocess.run(["sh", "-c", command], env=server.env, check=True, capture_output=True)
        assert server.inv("status").returncode == 0, "the hint does what it says"


@pytest.mark.deep
def test_a_hashed_known_host_is_known(server: SshServer) -> None:
    known = server.client_ssh / "known_hosts"
    with changed(known, known.read_text()):
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
        assert "127.0.0.1" not in known.read_text()
        assert server.inv("status").returncode == 0


@pytest.mark.deep
def test_a_changed_host_key_is_refused_with_a_stronger_warning(server: SshServer) -> None:
    known = server.client_ssh / "known_hosts"
    other = key(server.spot / "other_host").split()
    with changed(known, f"[127.0.0.1]:{server.port} {other[0]} {other[1]}\n"):
        said = refused(server)
        assert f"{known}:1  {server.place} PRESENTS A HOST KEY THAT DIFFERS FROM THE KNOWN ONE" in said
        command = next(line.strip() for line in said.splitlines() if "ssh-keygen" in line)
        subprocess.run(["sh", "-c", command], env=server.env, check=True, capture_output=True)
        assert "is not a known host" in refused(server)


@pytest.mark.deep
def test_the_server_is_asked_for_the_key_that_is_known(tmp_path: Path) -> None:
    with ssh_server(tmp_path, host_keys=("ed25519", "ecdsa", "rsa")) as server:
        known = server.client_ssh / "known_hosts"
        for line in known.read_text().splitlines():
            known.write_text(line + "\n")
            assert server.inv("doctor", "--nope").returncode == 2
            assert server.inv("render", "tiny", "--out", "o").returncode == 0, line


@pytest.mark.deep
def test_settings_of_openssh_and_the_config_file_are_used(server: SshServer, tmp_path: Path) -> None:
    config = server.client_ssh / "config"
    lines = ["Host lab", "  HostName 127.0.0.1", f"  Port {server.port}", f"  User {server.user}"]
    config.write_text("\n".join(lines) + "\n")
    own = tmp_path / "config.yml"
    own.write_text("place: ssh:lab\n")
    words = [str(server.project / "inv"), "status"]
    try:
        assert server.inv("status", place="ssh:lab").returncode == 0
        before = server.log.count("Accepted")
        env = {**server.env, "HEDDLE_CONFIG": str(own)}
        assert subprocess.run(words, env=env, capture_output=True, check=False).returncode == 0
        assert server.log.count("Accepted") == before + 1
        assert subprocess.run([*words, "--place=here"], env=env, capture_output=True, check=False).returncode == 0
        assert server.log.count("Accepted") == before + 1
    finally:
        config.unlink()


@pytest.mark.deep
def test_a_server_that_does_not_answer_is_reported(server: SshServer) -> None:
    wall = "ip link add wall0 type veth peer name wall1 && ip link set wall0 up && ip link set wall1 up"
    wall += " && ip address add 198.51.100.1/24 dev wall0"
    neighbour = "ip neighbour add 198.51.100.2 dev wall0 lladdr 02:00:00:00:00:02"
    with socket.socket() as closed, socket.socket() as silent, ThreadPoolExecutor(5) as all_at_once:
        closed.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()

        def port(of: socket.socket) -> int:
            return int(of.getsockname()[1])

        # Some of these wait 10 s for an answer.
        refusing = all_at_once.submit(refused, server, place=f"ssh:127.0.0.1:{port(closed)}")
        saying_nothing = all_at_once.submit(refused, server, place=f"ssh:127.0.0.1:{port(silent)}")
        without_route = all_at_once.submit(alone, server, "true")
        behind_a_wall = all_at_once.submit(alone, server, f"{wall} && {neighbour}")
        unknown = all_at_once.submit(refused, server, place="ssh:no.such.host.invalid")
        assert f"refuses connections at port {port(closed)}" in refusing.result()
        assert "does not speak SSH correctly" in saying_nothing.result()
        assert "cannot be reached at port 22: Network is unreachable" in without_route.result()
        assert "does not answer at port 22 within 10 s" in behind_a_wall.result()
        assert "cannot be resolved: no.such.host.invalid" in unknown.result()


def alone(server: SshServer, prepared: str) -> str:
    """What a verb says in a network of its own, where there is no server."""
    words = ["unshare", "-n", "sh", "-ec", prepared + ' && exec "$@"', "sh"]
    words += server.words("status", place="ssh:198.51.100.2")
    done = subprocess.run(words, env=server.env, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 3
    return done.stderr


@pytest.mark.deep
@pytest.mark.needs("mount")
def test_a_server_without_disk_space_or_python_is_reported(server: SshServer) -> None:
    small = server.spot / "small"
    small.mkdir()
    cache = server.cache / "heddle" / "place"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "heddle-test", str(cache)], check=True)
    try:
        said = refused(server)
        assert "No space left on device" in said
        assert "free some space there" in said
    finally:
        subprocess.run(["umount", str(cache)], check=True)
    keys = server.spot / "authorized_keys"
    with changed(keys, 'command="exit 127" ' + keys.read_text()):
        assert "has no python3" in refused(server)
    with changed(keys, 'command="echo This account is not available.; exit 1" ' + keys.read_text()):
        assert "does not run commands: python3 ended with exit code 1: This account is not available." in refused(
            server
        )
    with changed(keys, 'command="yes" ' + keys.read_text()):
        assert "does not run commands: its login printed more than 1 MiB first" in refused(server)
    with changed(keys, 'command="echo welcome; eval \\"$SSH_ORIGINAL_COMMAND\\"" ' + keys.read_text()):
        assert server.inv("status").stdout.startswith("no lab is running"), "what a login prints is passed over"


@pytest.mark.deep
def test_the_first_verb_sets_the_project_up(tmp_path: Path) -> None:
    with ssh_server(tmp_path, set_up=False) as server:
        done = server.inv("render", "tiny", "--out", "o", timeout=280)
        assert done.returncode == 0, done.stderr
        assert "files copied" in done.stderr
        assert "setting up Heddle's Python packages in .venv (once; it takes a while)" in done.stderr
        assert (server.spot / "o" / "tiny.clab.yml").exists()


@pytest.mark.deep
def test_a_reader_that_goes_away_is_no_trouble(server: SshServer) -> None:
    words = server.words("exec", "--help")
    assert subprocess.run(words, env=server.env, capture_output=True, check=False).returncode == 0
    inv = server.begin("up", "zone", "--explain")
    assert inv.stdout
    inv.stdout.close()
    assert inv.wait(timeout=patience(30)) == 141


@pytest.mark.deep
def test_an_account_that_may_not_run_commands_is_reported(server: SshServer) -> None:
    config = server.spot / "sshd_config"
    with changed(config, config.read_text() + "MaxSessions 0\n"):
        os.kill(server.process.pid, signal.SIGHUP)  # sshd reads its settings again
        assert until(lambda: "does not run commands" in server.inv("status").stderr, 20)
        assert "see ForceCommand and MaxSessions" in refused(server)
    os.kill(server.process.pid, signal.SIGHUP)
    assert until(lambda: server.inv("status").returncode == 0, 20)
