"""--on ssh: through jump hosts: real OpenSSH servers in a row of network namespaces, each reaches only the next."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.machine import patience
from tests.sshd import ASKS, NEEDS, SshServer, copy_of_project, key, ssh_server
from tests.terminal import on_terminal

pytestmark = [NEEDS, pytest.mark.long, pytest.mark.needs("mount")]

HOPS = ("gate", "mid", "lab")
# crypt(3) of "a password".
SECRET = "$6$heddletest$fXRZEjxFCf.CPsxGfGA7ciH/xCCIiX9M5wsJ4drqS5LkTdVTYS"
SECRET += "kzAMe5yGRBmy8MxkJm72s3D7.RTmvlAuT8O."


def run(*words: str) -> None:
    subprocess.run(words, check=True)


@contextlib.contextmanager
def row() -> Iterator[list[str]]:
    """client - gate - mid - lab, a subnet for each link, and no forwarding."""
    names = [f"heddle-jump{os.getpid()}-{i}" for i in range(4)]
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        for i, (one, two) in enumerate(itertools.pairwise(names)):
            run("ip", "-n", one, "link", "add", f"r{i}", "type", "veth", "peer", f"l{i}", "netns", two)
            for name, port, last in ((one, f"r{i}", 1), (two, f"l{i}", 2)):
                run("ip", "-n", name, "address", "add", f"10.77.{i}.{last}/24", "dev", port)
                run("ip", "-n", name, "link", "set", port, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


class Row:
    """The client, and its three servers. The last one asks for a password too, where a test says so."""

    def __init__(self, client: str, servers: Mapping[str, SshServer]) -> None:
        self.client, self.servers = client, servers
        self.first = servers["gate"]
        self.ssh = self.first.client_ssh
        self.env = {**self.first.env, "SSH_AUTH_SOCK": ""}
        known = "".join((s.client_ssh / "known_hosts").read_text() for s in servers.values())
        (self.ssh / "known_hosts").write_text(known)
        public = (self.ssh / "id_ed25519.pub").read_text()
        for server in servers.values():
            (server.spot / "authorized_keys").write_text(public)
        self.config()

    def config(self, **more: str) -> None:
        """~/.ssh/config: the names of the servers are in a file that it includes."""
        hosts = [
            f"Host {name}\n  HostName {s.address}\n  Port {s.port}\n  User {s.user}\n  {more.get(name, '')}\n"
            for name, s in self.servers.items()
        ]
        (self.ssh / "labs.conf").write_text("".join(hosts))
        (self.ssh / "config").write_text("Include labs.c*\nHost *\n  ConnectTimeout 10\n")

    def words(self, place: str) -> list[str]:
        python = str(self.first.project / ".venv/bin/python")
        return ["ip", "netns", "exec", self.client, python, "-c", ASKS, place]

    def ask(self, place: str) -> str:
        done = subprocess.run(
            self.words(place), cwd=self.first.project, env=self.env, capture_output=True, text=True,
            timeout=patience(60), check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.stdout + done.stderr

    def type_at_a_terminal(self, place: str, prompt: str, *typed: str) -> str:
        """What is shown to a user who types this at each prompt."""
        with on_terminal(self.words(place), self.env, self.first.project) as terminal:
            for each in typed:
                terminal.until(prompt, 60)
                terminal.type(f"{each}\n")
            terminal.code()
        return terminal.said


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Row]:
    spot = tmp_path_factory.mktemp("jumps")
    project = copy_of_project(spot / "project")
    shadow = spot / "shadow"
    shadow.write_text(f"root:{SECRET}:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n")
    with contextlib.ExitStack() as opened:
        names = opened.enter_context(row())
        found = {}
        for i, name in enumerate(HOPS):
            before = ["ip", "netns", "exec", names[i + 1], "unshare", "--mount"]
            lines = []
            if name == "lab":
                before += ["sh", "-c", 'mount --bind "$0" /etc/shadow && exec "$@"', str(shadow)]
                lines = ["UsePAM no", "PermitRootLogin yes", "PasswordAuthentication yes"]
            found[name] = opened.enter_context(
                ssh_server(spot / name, project=project, address=f"10.77.{i}.2", before=before, lines=lines)
            )
        yield Row(names[0], found)


def test_a_server_behind_jump_hosts_is_reached_by_each_setting_of_openssh(servers: Row) -> None:
    gate, mid, _ = (f"{s.user}@{s.address}:{s.port}" for s in servers.servers.values())
    assert "10.77.0.2" in servers.ask("ssh:gate")
    assert "Network is unreachable" in servers.ask("ssh:lab"), "only through the others"
    servers.config(lab=f"ProxyJump {gate},{mid}")
    assert "answer" in (answer := servers.ask("ssh:lab")) and "10.77.2.1" in answer
    servers.config(mid="ProxyJump gate", lab="ProxyJump mid")
    assert "10.77.2.1" in servers.ask("ssh:lab"), "the settings of a jump host count too"
    words = ["ssh", "-F", f"{servers.ssh}/labs.conf", "-i", f"{servers.ssh}/id_ed25519"]
    words += ["-o", f'UserKnownHostsFile="{servers.ssh}/known_hosts"', "-W", "%h:%p", "gate"]
    command = shlex.join(words)
    servers.config(mid=f"ProxyCommand {command}", lab="ProxyJump mid")
    assert "10.77.2.1" in servers.ask("ssh:lab")
    servers.config(mid="ProxyCommand exit 1")
    assert "through its ProxyCommand, exit 1: " in servers.ask("ssh:mid")
    servers.config(lab="ProxyJump gate")
    refused = servers.ask("ssh:lab")
    assert "ssh:lab cannot be reached at 10.77.2.2 port" in refused and "through gate: " in refused
    assert "AllowTcpForwarding" in refused


def test_a_verb_runs_behind_jump_hosts_and_its_files_come_back(servers: Row, tmp_path: Path) -> None:
    servers.config(mid="ProxyJump gate", lab="ProxyJump mid")
    (tmp_path / "mine.yml").write_text("name: mine\nracks: 1\nctsw: 1\n")
    words = ["ip", "netns", "exec", servers.client, *servers.first.words("render", "mine.yml", place="ssh:lab")]
    done = subprocess.run(words, cwd=tmp_path, env=servers.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/mine.clab.yml").exists()


def test_every_server_on_the_way_must_be_known_and_let_the_user_in(servers: Row) -> None:
    servers.config(mid="ProxyJump gate")
    known = servers.ssh / "known_hosts"
    lines = known.read_text().splitlines(keepends=True)
    try:
        known.write_text("".join(lines[1:]))
        assert "error ssh:gate is not a known host" in servers.ask("ssh:mid")
        known.write_text("".join(lines[:1]))
        refused = servers.ask("ssh:mid")
        assert "error ssh:mid is not a known host" in refused
        assert "and answer yes" in refused, "ssh-keyscan does not go through a jump host"
    finally:
        known.write_text("".join(lines))


def test_a_passphrase_is_asked_for_at_a_terminal_and_nowhere_else(servers: Row) -> None:
    servers.config(gate="IdentityFile ~/.ssh/locked")
    gate = servers.servers["gate"]
    public = key(servers.ssh / "locked", passphrase="a passphrase")
    before = (gate.spot / "authorized_keys").read_text()
    (gate.spot / "authorized_keys").write_text(public)
    try:
        seen = servers.type_at_a_terminal("ssh:gate", f"Passphrase for {servers.ssh}/locked: ", "wrong", "a passphrase")
        assert "answer" in seen and "a passphrase" not in seen
        assert f"{servers.ssh}/locked (it needs its passphrase)" in servers.ask("ssh:gate")
    finally:
        (gate.spot / "authorized_keys").write_text(before)


def test_a_password_is_asked_for_at_a_terminal_and_nowhere_else(servers: Row) -> None:
    servers.config(mid="ProxyJump gate", lab="ProxyJump mid\n  IdentityFile ~/.ssh/none")
    prompt = f"Password for {servers.first.user}@10.77.2.2: "
    seen = servers.type_at_a_terminal("ssh:lab", prompt, "wrong", "a password")
    assert "answer" in seen and "a password" not in seen
    refused = servers.ask("ssh:lab")
    assert "error ssh:lab refuses the login" in refused
    assert "run it at a terminal, where Heddle asks" in refused
