"""--place ssh: against a real OpenSSH server on loopback: the same verb, over there, as if it were here."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.sshd import SshServer, children_of, copy_of_project, key, ssh_server

Leftovers = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """A server with a checkout of its own kind: paths with spaces, and nobody else changes a file of it."""
    spot = tmp_path_factory.mktemp("place with spaces")
    with ssh_server(spot, project=copy_of_project(spot / "the project")) as running:
        assert running.inv("doctor", "--format=json").returncode in (0, 3)  # the project is there now
        yield running


@pytest.fixture
def name(server: SshServer, lab_name: Callable[[], str]) -> Iterator[str]:
    """The name of a lab on the server, that goes down with the test."""
    chosen = lab_name()
    yield chosen
    server.inv("down", chosen)


def until(done: Callable[[], bool], seconds: float = 60) -> bool:
    """Wait for something; False when it does not come."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def line_with(process: subprocess.Popen[str], word: str) -> str:
    """Read stderr up to a line that holds the word."""
    assert process.stderr
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"it ended without a word of {word}")


def cut(server: SshServer) -> None:
    """End the server's side of every connection, as when a machine is switched off."""
    for pid in server.sessions():
        for inner in [*children_of(pid), pid]:
            if Path("/proc", str(inner), "comm").read_text().strip().startswith("sshd"):
                os.kill(inner, signal.SIGKILL)


def test_a_lab_lives_on_the_server(server: SshServer, name: str, leftovers: Leftovers) -> None:
    up = server.inv("up", "tiny", "--name", name)
    assert (up.returncode, up.stdout.split(" ")[0]) == (0, name), up.stderr
    assert "converge: 4 switches have all next hops" in up.stderr
    labs = json.loads(server.inv("status", "--format=json").stdout)["labs"]
    assert [(lab["lab"], lab["converged"]) for lab in labs] == [(name, True)]
    assert "no lab is running" in server.inv("status", place="here").stdout
    run = server.inv("run", "--lab", name, "--size", "64K", "--format", "json")
    assert (run.returncode, json.loads(run.stdout)["lab"]) == (0, name)
    assert server.inv("validate", "--lab", name).returncode == 0
    assert server.inv("down", name).returncode == 0
    assert leftovers(name) == []


def test_a_command_in_a_node_has_its_input_its_streams_and_its_code(server: SshServer, name: str) -> None:
    assert server.inv("up", "tiny", "--name", name).returncode == 0
    words = ["exec", "--lab", name, "host1", "sh", "-c", "tr a-z A-Z; echo 'two words' >&2; exit 7"]
    done = server.inv(*words, stdin="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "IN\n", "two words\n")
    big = "0123456789abcde\n" * 300_000  # more than any buffer on the way
    assert server.inv("exec", "--lab", name, "host1", "cat", stdin=big).stdout == big
    killed = server.inv("exec", "--lab", name, "host1", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 137
    terminal(server, name)
    hung_up(server, name)
    left_at_once(server, name)


def terminal(server: SshServer, name: str) -> None:
    """At a terminal the command has one too, of the same size, and Ctrl-C is a key of it."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    words = server.words("exec", "--lab", name, "host1", "sh", "-c", "stty size; exec sleep 60")
    inv = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, env=server.env, start_new_session=True)
    seen = b""
    while b"33 77\r\n" not in seen:
        seen += os.read(master, 1000)
    os.write(master, b"\x03")
    assert inv.wait(timeout=20) == 130
    assert termios.tcgetattr(slave)[3] & termios.ECHO, "the terminal is left as it was"
    for end in (master, slave):
        os.close(end)


def hung_up(server: SshServer, name: str) -> None:
    """When the connection breaks, a command that would never end is ended."""
    inv = server.begin("exec", "--lab", name, "host1", "sh", "-c", "echo begun >&2; exec sleep 4321")
    line_with(inv, "begun")
    assert until(lambda: bool(sleepers("4321")), 10)
    cut(server)
    assert inv.wait(timeout=20) == 3
    assert until(lambda: not sleepers("4321"), 20)


def left_at_once(server: SshServer, name: str) -> None:
    """A command that takes no notice of Ctrl-C does not keep anybody here, nor does it stay there."""
    inv = server.begin("exec", "--lab", name, "host1", "sh", "-c", "trap '' INT; echo begun >&2; sleep 4321")
    line_with(inv, "begun")
    inv.send_signal(signal.SIGINT)
    line_with(inv, "Ctrl-C again leaves at once")
    inv.send_signal(signal.SIGINT)
    _, said = inv.communicate(timeout=20)
    assert (inv.returncode, f"./inv status --place {server.place} shows it" in said) == (130, True)
    assert until(lambda: not sleepers("4321"), 20)


def sleepers(seconds: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(entry.name)
    return found


def test_ctrl_c_in_the_middle_of_up_leaves_nothing(server: SshServer, name: str, leftovers: Leftovers) -> None:
    inv = server.begin("up", "zone", "--name", name)
    line_with(inv, "create:")
    inv.send_signal(signal.SIGINT)
    _, said = inv.communicate(timeout=60)
    assert (inv.returncode, "./inv was interrupted" in said) == (130, True), said
    assert leftovers(name) == []


def test_sigterm_in_the_middle_of_up_leaves_nothing(server: SshServer, name: str, leftovers: Leftovers) -> None:
    inv = server.begin("up", "zone", "--name", name)
    line_with(inv, "create:")
    inv.terminate()
    inv.communicate(timeout=60)
    assert inv.returncode == 128 + signal.SIGTERM
    assert leftovers(name) == []


def test_a_cut_connection_leaves_a_lab_that_status_finds(server: SshServer, name: str) -> None:
    inv = server.begin("up", "zone", "--name", name, "--format=json")
    line_with(inv, "create:")
    cut(server)
    document, said = inv.communicate(timeout=20)
    assert (inv.returncode, json.loads(document)["error"]["exit_code"]) == (3, 3)
    assert "the connection broke during up" in said
    assert f"./inv status --place {server.place} shows" in said

    def is_up() -> bool:
        labs = json.loads(server.inv("status", "--format=json").stdout)["labs"]
        return [(lab["lab"], lab["converged"]) for lab in labs] == [(name, True)]

    assert until(is_up, 90)


def test_only_what_changed_is_sent(server: SshServer) -> None:
    assert server.inv("doctor").stderr == ""
    here, there = server.project, server.brought()
    (here / "docs/new file.md").write_text("new\n")
    (here / "docs/link.md").symlink_to("new file.md")
    assert " 2 files brought over" in server.inv("doctor").stderr
    assert (there / "docs/link.md").readlink() == Path("new file.md")
    (here / "docs/new file.md").chmod(0o755)
    assert " 1 files brought over" in server.inv("doctor").stderr
    assert os.access(there / "docs/link.md", os.X_OK)
    (here / "docs/new file.md").unlink()
    (here / "docs/link.md").unlink()
    assert server.inv("doctor").stderr == ""
    assert not (there / "docs/new file.md").exists()
    assert os.access(there / "inv", os.X_OK)
    assert (there / ".venv").exists()


def test_what_was_spoilt_or_cut_short_there_is_mended(server: SshServer) -> None:
    there = server.brought()
    (there / "README.md").write_text("spoilt\n")
    (there / "docs" / "fabric-file.md").unlink()
    assert " 2 files brought over" in server.inv("doctor").stderr
    (there.parent / "record.json").unlink()  # as a sync leaves it that was cut
    (there / "tasks.py").write_text("half of i")
    assert " 1 files brought over" in server.inv("doctor").stderr
    assert server.inv("doctor").stderr == ""


def test_files_go_there_and_come_back(server: SshServer, tmp_path: Path) -> None:
    fabric = tmp_path / "my fabric.yml"
    fabric.write_text("name: mine\nracks: 1\nctsw: 1\n")
    (tmp_path / "sub").mkdir()
    for typed, out in (("my fabric.yml", "o ut/x"), ("../my fabric.yml", "../y"), (str(fabric), str(tmp_path / "z"))):
        spot = tmp_path / "sub" if typed.startswith("..") else tmp_path
        done = server.inv("render", typed, "--out", out, cwd=spot)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"wrote {out}/mine.clab.yml, and what it binds beside it\n"
        assert (spot / out / "mine.clab.yml").exists()
        assert os.access(spot / out / "rtsw1/start.sh", os.R_OK)
    assert server.inv("render", "my fabric.yml", cwd=tmp_path).returncode == 0
    assert (tmp_path / "out" / "mine.clab.yml").exists()
    left = [p.name for p in server.brought().parent.iterdir() if p.name.startswith("s")]
    assert left == []


def test_errors_speak_of_the_file_as_it_was_typed(server: SshServer, tmp_path: Path) -> None:
    fabric = tmp_path / "mine.yml"
    fabric.write_text("name: mine\nracks: none\nctsw: 1\n")
    for typed in ("mine.yml", str(fabric)):
        done = server.inv("up", typed, "--explain", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(f"{typed}:2  racks: none ")
        assert done.stderr == server.inv("up", typed, "--explain", cwd=tmp_path, place="here").stderr
    there, here = (server.inv("up", "mine.yaml", cwd=tmp_path, place=p) for p in (None, "here"))
    assert (there.returncode, there.stderr) == (2, here.stderr)
    done = server.inv("up", "mine.yml", "--explain", "--format=json", cwd=tmp_path)
    assert json.loads(done.stdout)["error"]["problems"][0]["where"] == "mine.yml:2"


def test_codes_pass_through(server: SshServer) -> None:
    assert server.inv("test", "unit", "--", "-k", "no_test_is_called_so").returncode == 1
    assert server.inv("status", "nosuchlab").returncode == 2
    assert server.inv("up", "tiny", "--runtime", "nosuch").returncode == 2


def refused(server: SshServer, *typed: str, place: str | None = None) -> str:
    """What a verb says that cannot go there: exit code 3, and the same as JSON."""
    done = server.inv(*(typed or ("status",)), place=place, timeout=60)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    document = json.loads(server.inv("status", "--format=json", place=place, timeout=60).stdout)
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


def test_a_wrong_key_is_refused_with_its_name(server: SshServer) -> None:
    with changed(server.spot / "authorized_keys", ""):
        said = refused(server)
    assert f"does not let {server.user} in; tried: ~/.ssh/id_ed25519\n" in said
    assert f"ssh-copy-id -p {server.port} {server.user}@127.0.0.1 puts a key there" in said


def test_without_a_key_it_is_said_where_keys_are_looked_for(server: SshServer) -> None:
    with changed(server.client_ssh / "id_ed25519", None):
        assert "no key in an agent, nor at ~/.ssh/id_ed25519, ~/.ssh/id_ecdsa, ~/.ssh/id_rsa" in refused(server)


def test_a_key_with_a_passphrase_is_named(server: SshServer) -> None:
    locked = server.client_ssh / "id_ecdsa"
    key(locked, "ecdsa", "a passphrase")
    try:
        assert server.inv("status").returncode == 0  # the other key does
        with changed(server.client_ssh / "id_ed25519", None):
            said = refused(server)
        assert "ssh-add ~/.ssh/id_ecdsa, for ~/.ssh/id_ecdsa needs its passphrase" in said
    finally:
        locked.unlink()


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
        assert f"is not a known host; it shows ssh-ed25519 {shown}" in said
        command = next(line.strip() for line in said.splitlines() if "ssh-keyscan" in line)
        subprocess.run(["sh", "-c", command], env=server.env, check=True, capture_output=True)
        assert server.inv("status").returncode == 0, "the hint does what it says"


def test_a_hashed_known_host_is_known(server: SshServer) -> None:
    known = server.client_ssh / "known_hosts"
    with changed(known, known.read_text()):
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
        assert "127.0.0.1" not in known.read_text()
        assert server.inv("status").returncode == 0


def test_a_changed_host_key_is_refused_louder(server: SshServer) -> None:
    known = server.client_ssh / "known_hosts"
    other = key(server.spot / "other_host").split()
    with changed(known, f"[127.0.0.1]:{server.port} {other[0]} {other[1]}\n"):
        said = refused(server)
        assert f"{known}:1  {server.place} SHOWS ANOTHER KEY THAN THE ONE KNOWN" in said
        command = next(line.strip() for line in said.splitlines() if "ssh-keygen" in line)
        subprocess.run(["sh", "-c", command], env=server.env, check=True, capture_output=True)
        assert "is not a known host" in refused(server)


def test_the_server_is_asked_for_the_key_that_is_known(tmp_path: Path) -> None:
    with ssh_server(tmp_path, host_keys=("ed25519", "ecdsa", "rsa")) as server:
        known = server.client_ssh / "known_hosts"
        for line in known.read_text().splitlines():
            known.write_text(line + "\n")
            assert server.inv("doctor", "--nope").returncode == 2
            assert server.inv("render", "tiny", "--out", "o").returncode == 0, line


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
        config.write_text("\n".join([*lines, "  ProxyJump gate"]) + "\n")
        assert "is behind a jump host (gate)" in refused(server, place="ssh:lab")
    finally:
        config.unlink()


def test_what_does_not_answer_is_told(server: SshServer) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        assert f"refuses connections at port {port}" in refused(server, place=f"ssh:127.0.0.1:{port}")
        closed.listen()  # and says nothing
        began = time.monotonic()
        assert "does not speak SSH as it should" in refused(server, place=f"ssh:127.0.0.1:{port}")
        assert time.monotonic() - began < 50  # two verbs
    assert "cannot be reached at port 22: Network is unreachable" in alone(server, "true")
    wall = "ip link add wall0 type veth peer name wall1 && ip link set wall0 up && ip link set wall1 up"
    wall += " && ip address add 198.51.100.1/24 dev wall0"
    neighbour = "ip neighbour add 198.51.100.2 dev wall0 lladdr 02:00:00:00:00:02"
    assert "does not answer at port 22 within 10 s" in alone(server, f"{wall} && {neighbour}")
    assert "is not known here: no.such.host.invalid" in refused(server, place="ssh:no.such.host.invalid")


def alone(server: SshServer, prepared: str) -> str:
    """What a verb says in a network of its own, where there is no server."""
    words = ["unshare", "-n", "sh", "-ec", prepared + ' && exec "$@"', "sh"]
    words += server.words("status", place="ssh:198.51.100.2")
    done = subprocess.run(words, env=server.env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    return done.stderr


def test_a_server_without_room_or_python_is_told(server: SshServer) -> None:
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
        assert "does not run commands: python3 ended with 1: This account is not available." in refused(server)
    with changed(keys, 'command="yes" ' + keys.read_text()):
        assert "does not run commands: its login prints more than 1 MiB first" in refused(server)
    with changed(keys, 'command="echo welcome; eval \\"$SSH_ORIGINAL_COMMAND\\"" ' + keys.read_text()):
        assert server.inv("status").stdout.startswith("no lab is running"), "what a login prints is passed over"


def test_the_first_verb_sets_the_project_up(tmp_path: Path) -> None:
    with ssh_server(tmp_path, set_up=False) as server:
        done = server.inv("render", "tiny", "--out", "o", timeout=280)
        assert done.returncode == 0, done.stderr
        assert "files brought over" in done.stderr
        assert "setting up Heddle's Python packages in .venv (once; it takes a while)" in done.stderr
        assert (server.spot / "o" / "tiny.clab.yml").exists()


def test_a_reader_that_goes_away_is_no_trouble(server: SshServer) -> None:
    words = server.words("exec", "--help")
    assert subprocess.run(words, env=server.env, capture_output=True, check=False).returncode == 0
    inv = server.begin("up", "zone", "--explain")
    assert inv.stdout
    inv.stdout.close()
    assert inv.wait(timeout=30) == 141


def test_an_account_that_may_not_run_commands_is_told(server: SshServer) -> None:
    config = server.spot / "sshd_config"
    with changed(config, config.read_text() + "MaxSessions 0\n"):
        os.kill(server.process.pid, signal.SIGHUP)  # sshd reads its settings anew
        assert until(lambda: "lets nobody run commands" in server.inv("status").stderr, 20)
        assert "see ForceCommand and MaxSessions" in refused(server)
    os.kill(server.process.pid, signal.SIGHUP)
    assert until(lambda: server.inv("status").returncode == 0, 20)
