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
from itertools import islice
from pathlib import Path
from typing import Final

import paramiko
from paramiko.hostkeys import HostKeyEntry, HostKeys, InvalidHostKey

from heddle.base.files import expanded
from heddle.base.problems import InputError, MachineError, Problem, trouble
from heddle_plugins.places.address import Address, parse_address

PORT: Final = 22
SYSTEM: Final = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
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

    @property
    def known_name(self) -> str:
        """The server's name in known_hosts: `host`, or `[host]:port` where the port is not 22."""
        return self.name.lower() if self.port == PORT else f"[{self.name.lower()}]:{self.port}"

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
        keys=tuple(expanded(str(k)) for k in found.get("identityfile", [home / name for name in _USUAL])),
        only_these=found.get("identitiesonly", "no").lower() == "yes",
        known_hosts=(*(expanded(str(f)) for f in files), *SYSTEM),
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
                for file in sorted(glob.glob(str(Path.home() / ".ssh" / expanded(pattern)))):  # noqa: PTH207
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
    way, place = "", (target.host, target.port)
    try:
        if target.jumps:
            way = f" through {target.jumps[-1]}"
            jump = _jump_host(target, opened, (*before, address.host))
            sock = jump.open_channel("direct-tcpip", place, ("127.0.0.1", 0), timeout=TIMEOUT)
        elif target.proxy:
            way = f" through its ProxyCommand, {target.proxy}"
            sock = _proxied(target.proxy, opened)
        else:
            sock = socket.create_connection(place, timeout=TIMEOUT)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = paramiko.Transport(sock)
        opened.callback(transport.close)
        _check_host_key(transport, address, target)
    except (*FAILURES, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        hint = f"run ssh -v {target.login(address.host)}; check the name and port, sshd, and that no firewall blocks it"
        hint += "\nthe sshd_config of the jump host must have AllowTcpForwarding yes" * bool(target.jumps)
        why = f"cannot be reached at {target.host} port {target.port}{way}: {reason}"
        raise MachineError(Problem("", str(address), why, hint)) from None
    _log_in(transport, address, target)
    return transport


def _jump_host(target: Target, opened: ExitStack, before: tuple[str, ...]) -> paramiko.Transport:
    """The last jump host, which is reached through those before it."""
    *first, last = target.jumps
    jump = parse_address("ssh:" + last.removeprefix("ssh://"), "~/.ssh/config")
    hop = target_of(jump)
    if first:
        hop = replace(hop, jumps=tuple(first), proxy="")
    elif jump.host in before:  # `Host *` with ProxyJump is about the jump host too
        hop = replace(hop, jumps=())
    return _connect(jump, hop, opened, before)


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


def _check_host_key(transport: paramiko.Transport, address: Address, target: Target) -> None:
    known = known_keys(target)
    # A server presents one key: the first type of the client's list that it has. So the types of known keys come first.
    types = {key.get_name() for marker, _, key in known if not marker}
    wanted = types | {"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in types else types
    options = transport.get_security_options()
    options.key_types = sorted(options.key_types, key=lambda algorithm: algorithm not in wanted)
    transport.banner_timeout = transport.handshake_timeout = TIMEOUT
    transport.start_client(timeout=2 * TIMEOUT)
    if problem := host_key_problem(address, target, transport.get_remote_server_key(), known):
        raise MachineError(problem)


def known_keys(target: Target) -> list[tuple[str, str, paramiko.PKey]]:
    """Marker, file and line, and key of each line of known_hosts for this server; @revoked lines for every server.

    Lines that cannot be read and unreadable files are ignored, as in ssh; certificate authorities and patterns, too.
    Not paramiko's HostKeys.load: it fails at the first line with a marker.
    """
    found, name = [], target.known_name
    for file in target.known_hosts:
        with suppress(OSError):
            for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                marker, rest = line.split(None, 1) if line.startswith("@") and " " in line else ("", line)
                with suppress(InvalidHostKey, paramiko.SSHException, ValueError, IndexError, AssertionError):
                    entry = HostKeyEntry.from_line(" ".join(rest.split()[:3]))
                    names = entry.hostnames if entry and "!" not in rest.split()[0] else []
                    hashed = [HostKeys.hash_host(name, each) for each in names if each.startswith("|1|")]
                    ours = not marker and not {name, *hashed}.isdisjoint(names)
                    if entry and (ours or marker == "@revoked"):
                        found.append((marker, f"{file}:{number}", entry.key))
    return found


def host_key_problem(
    address: Address, target: Target, key: paramiko.PKey, known: Sequence[tuple[str, str, paramiko.PKey]]
) -> Problem | None:
    """Why the server's key is not accepted. No key is ever added: the user must verify a new one."""
    what, kind, file = str(address), key.get_name(), shlex.quote(str(target.known_hosts[0]))
    shown = f"{kind} {key.fingerprint}"
    if revoked := [where for marker, where, other in known if marker and other == key]:
        hint = "do not trust this key: ask the administrator of the server"
        return Problem(revoked[0], what, f"PRESENTS A REVOKED HOST KEY: {shown}", hint)
    plain = {where: other for marker, where, other in known if not marker}
    if key in plain.values():
        return None
    if plain:
        why = f"PRESENTS A HOST KEY THAT DIFFERS FROM THE KNOWN ONE: {shown}. This may be a man-in-the-middle attack"
        hint = "ask the administrator of the server whether its key is new. Only if it is, remove the old one:\n"
        return Problem(next(iter(plain)), what, why, f"{hint}ssh-keygen -f {file} -R {shlex.quote(target.known_name)}")
    word = next((w for w in ("ed25519", "ecdsa", "rsa") if w in kind), kind)
    port = f"-p {target.port} " if target.port != PORT else ""
    accept = f"ssh-keyscan {port}-t {word} {shlex.quote(target.host)} >> {file}"
    if target.name != target.host or target.jumps or target.proxy:
        accept = f"ssh {target.login(address.host)}, and answer yes"
    hint = f"on the server, run ssh-keygen -lf /etc/ssh/ssh_host_{word}_key.pub; if it prints the same key, run here:\n"
    return Problem("", what, f"is not a known host; it presents {shown}", hint + accept)


def _log_in(transport: paramiko.Transport, address: Address, target: Target) -> None:
    """Log in with each key of the user's, then with a password. MachineError when the server accepts none of them."""
    user = target.user
    tried: list[str] = []
    left: Sequence[str] = ()  # the methods that the server accepts now; none when it is satisfied
    transport.auth_timeout = 2 * TIMEOUT

    def attempt(name: str, login: Callable[[], Sequence[str]]) -> Sequence[str]:
        try:
            return login()
        except paramiko.BadAuthenticationType as error:
            return list(error.allowed_types)
        except (*FAILURES, ValueError) as error:
            tried.append(name if isinstance(error, paramiko.AuthenticationException) else f"{name} ({error})")
            return left

    left = attempt("no key", partial(transport.auth_none, user))
    for name, key in _keys(target, tried) if "publickey" in left else ():
        left = attempt(name, partial(transport.auth_publickey, user, key))
        if "publickey" not in left or not transport.is_active():  # too many keys for its MaxAuthTries
            break
    asks = not {"password", "keyboard-interactive"}.isdisjoint(left)
    for typed in _typed(f"Password for {user}@{target.host}: ") if asks and transport.is_active() else ():
        left = attempt("the password", partial(transport.auth_password, user, typed))
        if not left or not transport.is_active():
            break
    if not transport.is_authenticated():
        why = f"refuses the login of {user}; tried: {', '.join(dict.fromkeys(tried)) or 'no key'}"
        hint = f"run ssh-copy-id {target.login()} to install your key, or ssh-keygen -t ed25519 to make one;\n"
        hint += "run ssh-add KEY for a key with a passphrase, or run it at a terminal, where Heddle asks"
        raise MachineError(Problem("", str(address), f"{why}; it accepts: {', '.join(left)}", hint))


def _keys(target: Target, tried: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
    """Keys to try, with their names: first those of the agent, then files, last files that need a passphrase.

    tried: files that cannot be used are added.
    """
    public, offered, locked = {path: _public(path) for path in target.keys}, set(), []
    with suppress(paramiko.SSHException, OSError):
        for key in paramiko.Agent().get_keys():
            if not target.only_these or key.asbytes() in public.values():
                offered.add(key.asbytes())
                yield f"{key.comment or key.get_name()} of the agent", key
    for path in (path for path in target.keys if public[path] not in offered):
        try:
            yield str(path), paramiko.PKey.from_path(str(path))
        except FileNotFoundError:
            continue
        except (paramiko.PasswordRequiredException, TypeError):  # TypeError of cryptography: no passphrase
            locked.append(path)
        except (paramiko.SSHException, paramiko.UnknownKeyType, ValueError, OSError) as error:
            tried.append(f"{path} ({getattr(error, 'strerror', None) or error})")
    for path in locked:
        tried.append(f"{path} (it needs its passphrase)")
        for typed in _typed(f"Passphrase for {path}: "):
            with suppress(paramiko.SSHException, ValueError, TypeError):
                yield str(path), paramiko.PKey.from_path(str(path), typed.encode())  # it has str, but needs bytes
                break


def _typed(prompt: str) -> Iterator[str]:
    """What the user types at the prompt, up to three times; nothing without a terminal, or after an empty line."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        with suppress(EOFError):
            yield from islice(iter(partial(getpass.getpass, prompt, sys.stderr), ""), _ASKED)


def _public(path: Path) -> bytes:
    """The public half of a key file, if KEY.pub exists."""
    try:
        return bytes(paramiko.pkey.PublicBlob.from_file(f"{path}.pub").key_blob)
    except (OSError, ValueError):
        return b""
