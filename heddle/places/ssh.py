"""Connect to a lab server and log in through paramiko, with OpenSSH's settings, known hosts and keys.

In:  an Address, and ~/.ssh.
Out: a Transport that is logged in; MachineError names the failed step and a fix. Every step has a time limit.
"""

from __future__ import annotations

import getpass
import glob
import logging
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import paramiko

from heddle.base.problems import InputError, MachineError, Problem, trouble
from heddle.places.address import Address, parse_address
from heddle.places.hostkeys import PORT, SYSTEM, HostKeyState, algorithms, judge, known_name, read_known

TIMEOUT: Final = 10.0  # seconds for each of: the TCP connection, the banner, the key exchange
_USUAL: Final = ("id_ed25519", "id_ecdsa", "id_rsa")
_ASKED: Final = 3  # attempts for a passphrase or a password
_DEPTH: Final = 16  # of files that include each other, as in OpenSSH
FAILURES: Final = (paramiko.SSHException, EOFError, OSError)  # exceptions of paramiko when a connection ends


@dataclass(frozen=True, slots=True)
class Target:
    """A server with the settings of ~/.ssh/config. `name` is its name in known_hosts; `keys` are files, in order.

    jumps: the hosts on the way, the last one reaches this server. proxy: the command that is the connection.
    """

    host: str
    name: str
    port: int
    user: str
    keys: tuple[Path, ...]
    only_these: bool
    known_hosts: tuple[Path, ...]
    jumps: tuple[str, ...] = ()
    proxy: str = ""

    def login(self, host: str = "") -> str:
        """What ssh, ssh-copy-id and the like take: `-p 2222 user@host`."""
        port = f"-p {self.port} " if self.port != PORT else ""
        return port + shlex.quote(f"{self.user}@{host or self.host}")


def target_of(address: Address) -> Target:
    """The address, completed from ~/.ssh/config, then from OpenSSH's defaults."""
    home = Path.home() / ".ssh"
    # As in ssh, the first value counts: that of the command line. So %p and %r of ProxyCommand have it too.
    typed = [f"User {address.user}"] * bool(address.user) + [f"Port {address.port}"] * bool(address.port)
    try:
        lines = ["Host *", *typed, *_lines(home / "config", 0), "Host *", f"Port {PORT}"]
        found = paramiko.SSHConfig.from_text("\n".join(lines)).lookup(address.host)
        port = found.as_int("port")
    except OSError as error:
        raise trouble(error, "~/.ssh/config") from None
    except (paramiko.SSHException, ValueError) as error:
        hint = "run ssh -G HOST: it shows how OpenSSH reads the file"
        raise InputError(Problem("", "~/.ssh/config", f"cannot be read: {error}", hint)) from None
    jumps = found.get("proxyjump", "none")
    files = found.get("userknownhostsfile", "").split() or [home / "known_hosts", home / "known_hosts2"]
    return Target(
        host=found["hostname"],
        name=found.get("hostkeyalias", found["hostname"]),
        port=port,
        user=found.get("user") or getpass.getuser(),
        keys=tuple(Path(k).expanduser() for k in found.get("identityfile", [home / name for name in _USUAL])),
        only_these=found.get("identitiesonly", "no").lower() == "yes",
        known_hosts=(*(Path(f).expanduser() for f in files), *SYSTEM),
        jumps=() if jumps.lower() == "none" else tuple(jump.strip() for jump in jumps.split(",")),
        proxy=found.get("proxycommand") or "",
    )


def _lines(path: Path, depth: int) -> Iterator[str]:
    """The lines of a file of settings with those that it includes, which paramiko does not do."""
    block = "Host *"
    for line in path.read_text().splitlines() if path.exists() else ():
        word, _, rest = re.sub(r"\s*=\s*|\s+", " ", line.strip(), count=1).partition(" ")
        if word.lower() in ("host", "match"):
            block = line
        if word.lower() != "include":
            yield line
        elif depth < _DEPTH:
            for pattern in shlex.split(rest):
                for file in sorted(glob.glob(str(Path.home() / ".ssh" / Path(pattern).expanduser()))):  # noqa: PTH207
                    yield block
                    yield from _lines(Path(file), depth + 1)
            yield block  # a Host of the file ends with the file


@contextmanager
def connection(address: Address, target: Target | None = None) -> Iterator[paramiko.Transport]:
    """A connection that is logged in. MachineError when a step fails.

    target: the server itself, where ~/.ssh/config does not say it (the VM's guest).
    """
    logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # errors are reported below, once
    with ExitStack() as opened:
        yield _connect(address, target or target_of(address), opened, ())


def _connect(address: Address, target: Target, opened: ExitStack, before: tuple[str, ...]) -> paramiko.Transport:
    """before: the hosts that are reached through this one, by name."""
    if target.jumps:
        sock = _through(address, target, opened, (*before, address.host))
    elif target.proxy:
        sock = _proxied(target.proxy, opened)
    else:
        sock = _dial(address, target)
    transport = paramiko.Transport(sock)
    opened.callback(transport.close)
    _greet(transport, address, target)
    _Login(transport, address, target).run()
    return transport


def _through(address: Address, target: Target, opened: ExitStack, before: tuple[str, ...]) -> Any:
    """A channel to the server through its last jump host, which is reached through those before it."""
    *first, last = target.jumps
    jump = parse_address("ssh:" + last.removeprefix("ssh://"), "~/.ssh/config")
    hop = target_of(jump)
    if first:
        hop = replace(hop, jumps=tuple(first), proxy="")
    elif jump.host in before:  # `Host *` with ProxyJump is about the jump host too
        hop = replace(hop, jumps=())
    transport = _connect(jump, hop, opened, before)
    try:
        return transport.open_channel("direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=TIMEOUT)
    except FAILURES as error:
        why = f"cannot be reached through {jump}, at {target.host} port {target.port}: {error or type(error).__name__}"
        hint = "check that this jump host reaches it, and AllowTcpForwarding in the sshd_config of the jump host"
        raise MachineError(Problem("", str(address), why, hint)) from None


def _proxied(command: str, opened: ExitStack) -> socket.socket:
    """ProxyCommand, run by a shell as in OpenSSH. Ctrl-C is for the verb there, so it does not end the connection."""
    ours, theirs = socket.socketpair()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with theirs:
            words, end = ["sh", "-c", f"exec {command}"], theirs.fileno()
            process = subprocess.Popen(words, stdin=end, stdout=end, stderr=subprocess.DEVNULL)
    finally:
        signal.signal(signal.SIGINT, before)
    opened.callback(process.wait)
    opened.callback(process.terminate)
    opened.callback(ours.close)
    return ours


def _dial(address: Address, target: Target) -> socket.socket:
    what, where = str(address), f"port {target.port}" + (f" of {target.host}" if target.host != address.host else "")
    try:
        sock = socket.create_connection((target.host, target.port), timeout=TIMEOUT)
    except (socket.gaierror, UnicodeError) as error:
        why = f"cannot be resolved: {target.host}: {getattr(error, 'strerror', None) or error}"
        hint = "check the name; a Host of ~/.ssh/config can be used, too"
    except ConnectionRefusedError:
        why, hint = f"refuses connections at {where}", "start sshd on the server, or name its port: ssh:user@host:PORT"
    except TimeoutError:
        why = f"does not answer at {where} within {TIMEOUT:g} s"
        hint = "check that the server is running and that no firewall blocks the port"
    except OSError as error:
        why = f"cannot be reached at {where}: {error.strerror or error}"
        hint = "check that this machine has a route: ip route get ADDRESS"
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    raise MachineError(Problem("", what, why, hint))


def _greet(transport: paramiko.Transport, address: Address, target: Target) -> None:
    """Exchange keys, and check the server's host key."""
    known = read_known(target.known_hosts)
    options = transport.get_security_options()
    options.key_types = algorithms(known, target.name, target.port, options.key_types)
    transport.banner_timeout = transport.handshake_timeout = TIMEOUT
    try:
        transport.start_client(timeout=2 * TIMEOUT)
        key = transport.get_remote_server_key()
    except FAILURES as error:
        hint = f"run ssh -v {target.login()}, and check that sshd listens at this port"
        if target.proxy:
            hint = f"run its ProxyCommand of ~/.ssh/config by hand: {target.proxy}"
        why = f"does not speak SSH correctly at port {target.port}: {str(error) or type(error).__name__}"
        raise MachineError(Problem("", str(address), why, hint)) from None
    state, where = judge(known, target.name, target.port, key)
    if state is not HostKeyState.KNOWN:
        raise MachineError(_bad_host_key(address, target, key, state, where))


def _bad_host_key(address: Address, target: Target, key: paramiko.PKey, state: HostKeyState, where: str) -> Problem:
    kind = key.get_name()
    shown = f"{kind} {key.fingerprint}"
    file = shlex.quote(str(target.known_hosts[0]))
    if state is HostKeyState.REVOKED:
        hint = "do not trust this key: ask the administrator of the server"
        return Problem(where, str(address), f"PRESENTS A REVOKED HOST KEY: {shown}", hint)
    if state is HostKeyState.CHANGED:
        why = f"PRESENTS A HOST KEY THAT DIFFERS FROM THE KNOWN ONE: {shown}. This may be a man-in-the-middle attack"
        hint = (
            f"ask the administrator of the server whether its key is new. Only if it is, remove the old one:\n"
            f"ssh-keygen -f {file} -R {shlex.quote(known_name(target.name, target.port))}"
        )
        return Problem(where, str(address), why, hint)
    word = next((w for w in ("ed25519", "ecdsa", "rsa") if w in kind), kind)
    port = f"-p {target.port} " if target.port != PORT else ""
    accept = f"ssh-keyscan {port}-t {word} {shlex.quote(target.host)} >> {file}"
    if target.name != target.host or target.jumps or target.proxy:
        accept = f"ssh {target.login(address.host)}, and answer yes"
    hint = f"on the server, run ssh-keygen -lf /etc/ssh/ssh_host_{word}_key.pub; if it prints the same key, run here:\n"
    return Problem("", str(address), f"is not a known host; it presents {shown}", hint + accept)


class _Login:
    """Log in to one server, with each key of the user's, then with a password.

    refused: keys that the server did not accept. unusable: what to do about keys that could not be tried.
    left: the methods that the server still accepts; none when it is satisfied. partly: it accepted a key, wants more.
    """

    def __init__(self, transport: paramiko.Transport, address: Address, target: Target) -> None:
        self.transport, self.address, self.target = transport, address, target
        self.refused: list[str] = []
        self.unusable: list[str] = []
        self.left: list[str] = []
        self.partly = False
        transport.auth_timeout = 2 * TIMEOUT

    def run(self) -> None:
        """MachineError when the server does not let the user in."""
        user, done = self.target.user, self._try("", partial(self.transport.auth_none, self.target.user))
        if not done and "publickey" in self.left:
            for key, name in self._keys():
                done = self._try(name, partial(self.transport.auth_publickey, user, key))
                if done or self.partly or not self.transport.is_active():  # too many keys for its MaxAuthTries
                    break
        for _ in range(0 if done else _ASKED):
            if not (self._asks and self.transport.is_active() and _at_terminal()):
                break
            if not (typed := getpass.getpass(f"Password for {user}@{self.target.host}: ", sys.stderr)):
                break
            if done := self._try("the password", partial(self.transport.auth_password, user, typed)):
                break
        if not done:
            raise MachineError(self._problem())

    @property
    def _asks(self) -> bool:
        return not {"password", "keyboard-interactive"}.isdisjoint(self.left)

    def _try(self, name: str, login: Callable[[], list[str]]) -> bool:
        """Whether this logs in."""
        try:
            self.left = login()
        except paramiko.BadAuthenticationType as error:
            if not name:
                self.left = list(error.allowed_types)
            return False
        except (*FAILURES, ValueError) as error:
            plain = isinstance(error, paramiko.AuthenticationException)
            self.refused.append(name if plain else f"{name} ({str(error) or type(error).__name__})".strip())
            return False
        self.partly = bool(self.left)
        return not self.left

    def _keys(self) -> Iterator[tuple[paramiko.PKey, str]]:
        """Keys to try, with their names: first those of the agent, then files, last files that need a passphrase."""
        offered, locked = set(), []
        named = {blob for path in self.target.keys for blob in _public(path)}
        try:
            agent: Sequence[paramiko.AgentKey] = paramiko.Agent().get_keys()
        except (paramiko.SSHException, OSError):
            agent = ()
        for key in agent:
            if not self.target.only_these or key.asbytes() in named:
                offered.add(key.asbytes())
                yield key, f"{key.comment or key.get_name()} of the agent"
        for path in self.target.keys:
            if offered.intersection(_public(path)):
                continue
            try:
                yield paramiko.PKey.from_path(str(path)), _short(path)
            except FileNotFoundError:
                continue
            except (paramiko.PasswordRequiredException, TypeError):  # TypeError of cryptography: no passphrase
                locked.append(path)
            except (paramiko.SSHException, paramiko.UnknownKeyType, ValueError, OSError) as error:
                self.unusable.append(f"{_short(path)} cannot be used: {getattr(error, 'strerror', None) or error}")
        hints = [f"run ssh-add {_typed(path)}, because {_short(path)} needs its passphrase" for path in locked]
        self.unusable[:0] = hints
        for path, hint in zip(locked, hints, strict=True):
            if key := _unlocked(path):
                self.unusable.remove(hint)
                yield key, _short(path)

    def _problem(self) -> Problem:
        ask = ["run it at a terminal, where Heddle asks for the password"] if self._asks else []
        copy = f"run ssh-copy-id {self.target.login()} to install your key"
        if self.partly:
            why = f"requires more than a key: {', '.join(self.left)}"
            hint = "; or ".join([*ask, "allow this user to log in with a key alone"])
        elif self.left and "publickey" not in self.left:
            why = f"does not accept keys from {self.target.user}, only: {', '.join(self.left)}"
            hint = "; or ".join([*ask, "set PubkeyAuthentication yes in its sshd_config"])
        elif self.refused:
            why = f"refuses the login of {self.target.user}; keys tried: {', '.join(dict.fromkeys(self.refused))}"
            hint = "\n".join([*self.unusable, copy, *ask])
        elif self.unusable:
            why, hint = "refuses the login: no key of this machine can be used", "\n".join([*self.unusable, *ask])
        else:
            looked = ", ".join(map(_short, self.target.keys))
            why = f"refuses the login: there is no key in an SSH agent, nor at {looked}"
            hint = "\n".join([f"run ssh-keygen -t ed25519 to make a key, then {copy}", *ask])
        return Problem("", str(self.address), why, hint)


def _unlocked(path: Path) -> paramiko.PKey | None:
    """The key, when a user at a terminal types its correct passphrase; else None."""
    for _ in range(_ASKED if _at_terminal() else 0):
        typed = getpass.getpass(f"Passphrase for {_short(path)}: ", sys.stderr)
        if not typed:
            break
        with suppress(paramiko.SSHException, ValueError, TypeError):
            return paramiko.PKey.from_path(str(path), typed.encode())  # paramiko has str, but needs bytes
    return None


def _at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _public(path: Path) -> Sequence[bytes]:
    """The public half of a key file, if KEY.pub exists."""
    try:
        return [paramiko.pkey.PublicBlob.from_file(f"{path}.pub").key_blob]
    except (OSError, ValueError):
        return ()


def _typed(path: Path) -> str:
    """A path as a word for a shell, with ~ unquoted."""
    home, tilde, rest = _short(path).partition("~/")
    return f"~/{shlex.quote(rest)}" if tilde and not home else shlex.quote(str(path))


def _short(path: Path) -> str:
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)
