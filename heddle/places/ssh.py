"""Connect to a lab server and log in through paramiko, with OpenSSH's settings, known hosts and keys.

In:  an Address, and ~/.ssh.
Out: a Transport that is logged in; MachineError names the failed step and a fix. Every step has a time limit.
"""

from __future__ import annotations

import getpass
import logging
import shlex
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.base.problems import InputError, MachineError, Problem, trouble
from heddle.places import known_hosts
from heddle.places.address import Address
from heddle.places.known_hosts import HostKeyState

if TYPE_CHECKING:
    import paramiko

TIMEOUT: Final = 10.0  # seconds for each of: the TCP connection, the banner, the key exchange
_DEAD: Final = 20  # seconds after which TCP closes a connection whose peer does not answer
_USUAL: Final = ("id_ed25519", "id_ecdsa", "id_rsa")
_ASKED: Final = 3  # attempts for a passphrase


@dataclass(frozen=True, slots=True)
class Target:
    """A server with the settings of ~/.ssh/config. `name` is its name in known_hosts; `keys` are files, in order."""

    host: str
    name: str
    port: int
    user: str
    keys: tuple[Path, ...]
    only_these: bool
    known_hosts: tuple[Path, ...]

    @property
    def login(self) -> str:
        """What ssh, ssh-copy-id and the like take: `-p 2222 user@host`."""
        port = f"-p {self.port} " if self.port != known_hosts.DEFAULT_PORT else ""
        return port + shlex.quote(f"{self.user}@{self.host}")


def target_of(address: Address) -> Target:
    """The address, completed from ~/.ssh/config, then from OpenSSH's defaults."""
    home = Path.home() / ".ssh"
    said = _settings(home / "config", address)
    for key in ("proxyjump", "proxycommand"):
        if said.get(key, "none").lower() != "none":
            far = f"{said.get('hostname', address.host)}:{address.port or said.get('port', 22)}"
            hint = (
                f"open a tunnel: ssh -N -L 2222:{far} {said[key].split(',')[-1] if key == 'proxyjump' else 'JUMP'}; "
                "then use --place ssh:user@localhost:2222"
            )
            why = f"is behind a jump host ({said[key][:60]}), which --place does not support"
            raise MachineError(Problem("~/.ssh/config", str(address), why, hint))
    host = said.get("hostname", address.host)
    files = said.get("userknownhostsfile", "").split() or [str(home / "known_hosts"), str(home / "known_hosts2")]
    named = [Path(k).expanduser() for k in said.get("identityfile", [])]
    try:
        port = address.port or int(said.get("port", known_hosts.DEFAULT_PORT))
    except ValueError:
        raise InputError(Problem("~/.ssh/config", f"Port {said['port']}", "is not a number")) from None
    return Target(
        host=host,
        name=said.get("hostkeyalias", host),
        port=port,
        user=address.user or said.get("user") or getpass.getuser(),
        keys=tuple(named or [home / name for name in _USUAL]),
        only_these=said.get("identitiesonly", "no").lower() == "yes",
        known_hosts=(*(Path(f).expanduser() for f in files), *known_hosts.SYSTEM),
    )


def _settings(path: Path, address: Address) -> dict[str, Any]:
    import paramiko

    try:
        return dict(paramiko.SSHConfig.from_path(str(path)).lookup(address.host))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise trouble(error, "~/.ssh/config") from None
    except (paramiko.SSHException, UnicodeDecodeError, ValueError) as error:
        hint = "run ssh -G HOST: it shows how OpenSSH reads the file"
        raise InputError(Problem("", "~/.ssh/config", f"cannot be read: {error}", hint)) from None


def connect(address: Address, target: Target | None = None) -> tuple[paramiko.Transport, Target]:
    """A connection that is logged in; the caller closes it. MachineError when a step fails.

    target: the server itself, where ~/.ssh/config does not say it (the VM's guest).
    """
    import paramiko

    logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # errors are reported below, once
    target = target or target_of(address)
    sock = _dial(address, target)
    transport = paramiko.Transport(sock)
    try:
        _greet(transport, address, target)
        _log_in(transport, address, target)
    except BaseException:
        transport.close()
        raise
    return transport, target


def _dial(address: Address, target: Target) -> socket.socket:
    what, where = str(address), f"port {target.port}" + (f" of {target.host}" if target.host != address.host else "")
    try:
        sock = socket.create_connection((target.host, target.port), timeout=TIMEOUT)
    except (socket.gaierror, UnicodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        hint = "check the name; a Host of ~/.ssh/config can be used, too"
        raise MachineError(Problem("", what, f"cannot be resolved: {target.host}: {said}", hint)) from None
    except ConnectionRefusedError:
        hint = "start sshd on the server, or name its port: ssh:user@host:PORT"
        raise MachineError(Problem("", what, f"refuses connections at {where}", hint)) from None
    except TimeoutError:
        hint = "check that the server is running and that no firewall blocks the port"
        raise MachineError(Problem("", what, f"does not answer at {where} within {TIMEOUT:g} s", hint)) from None
    except OSError as error:
        hint = "check that this machine has a route: ip route get ADDRESS"
        raise MachineError(
            Problem("", what, f"cannot be reached at {where}: {error.strerror or error}", hint)
        ) from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Keepalives detect a peer that has disappeared, even while nothing is sent.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", _DEAD * 1000),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


def _greet(transport: paramiko.Transport, address: Address, target: Target) -> None:
    """Exchange keys, and check the server's host key."""
    import paramiko

    entries = known_hosts.read_entries(target.known_hosts)
    options = transport.get_security_options()
    options.key_types = known_hosts.algorithms(entries, target.name, target.port, list(options.key_types))
    transport.banner_timeout = transport.handshake_timeout = TIMEOUT
    try:
        transport.start_client(timeout=2 * TIMEOUT)
        key = transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as error:
        said = str(error) or type(error).__name__
        hint = f"run ssh -v {target.login}, and check that sshd listens at this port"
        why = f"does not speak SSH correctly at port {target.port}: {said}"
        raise MachineError(Problem("", str(address), why, hint)) from None
    raw = key.asbytes()
    judged = known_hosts.judge(entries, target.name, target.port, raw)
    if judged.verdict is not HostKeyState.KNOWN:
        raise MachineError(_bad_host_key(address, target, key.get_name(), raw, judged))


def _bad_host_key(address: Address, target: Target, kind: str, raw: bytes, judged: known_hosts.Judgement) -> Problem:
    shown = f"{kind} {known_hosts.fingerprint(raw)}"
    name = known_hosts.known_name(target.name, target.port)
    file = shlex.quote(str(target.known_hosts[0]))
    if judged.verdict is HostKeyState.REVOKED:
        hint = "do not trust this key: ask the administrator of the server"
        return Problem(judged.where, str(address), f"PRESENTS A REVOKED HOST KEY: {shown}", hint)
    if judged.verdict is HostKeyState.CHANGED:
        why = f"PRESENTS A HOST KEY THAT DIFFERS FROM THE KNOWN ONE: {shown}. This may be a man-in-the-middle attack"
        hint = (
            f"ask the administrator of the server whether its key is new. Only if it is, remove the old one:\n"
            f"ssh-keygen -f {file} -R {shlex.quote(name)}"
        )
        return Problem(judged.where, str(address), why, hint)
    word = next((w for w in ("ed25519", "ecdsa", "rsa") if w in kind), kind)
    port = f"-p {target.port} " if target.port != known_hosts.DEFAULT_PORT else ""
    host = shlex.quote(target.host)
    hint = (
        f"on the server, run ssh-keygen -lf /etc/ssh/ssh_host_{word}_key.pub; if it prints the same key, run here:\n"
        + (
            f"ssh-keyscan {port}-t {word} {host} >> {file}"
            if target.name == target.host
            else f"ssh {target.login}, and answer yes"
        )
    )
    return Problem("", str(address), f"is not a known host; it presents {shown}", hint)


@dataclass(slots=True)
class _Tried:
    """Keys that the server refused, and keys that could not be tried."""

    refused: list[str] = field(default_factory=list)
    locked: list[Path] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def _log_in(transport: paramiko.Transport, address: Address, target: Target) -> None:
    import paramiko

    tried = _Tried()
    transport.auth_timeout = 2 * TIMEOUT
    for key, name in _keys(target, tried):
        try:
            more = transport.auth_publickey(target.user, key)
        except paramiko.BadAuthenticationType as error:
            why = f"does not accept keys from {target.user}, only: {', '.join(error.allowed_types)}"
            hint = "set PubkeyAuthentication yes in its sshd_config"
            raise MachineError(Problem("", str(address), why, hint)) from None
        except paramiko.AuthenticationException:
            tried.refused.append(name)
            if not transport.is_active():
                break
            continue
        except (paramiko.SSHException, EOFError, OSError, ValueError) as error:
            tried.refused.append(f"{name} ({str(error) or type(error).__name__})")
            if not transport.is_active():  # too many keys for its MaxAuthTries
                break
            continue
        if more:
            why = f"requires more than a key: {', '.join(more)}"
            raise MachineError(Problem("", str(address), why, "allow this user to log in with a key alone"))
        return
    raise MachineError(_refused(address, target, tried))


def _refused(address: Address, target: Target, tried: _Tried) -> Problem:
    here = [f"run ssh-add {_typed(path)}, because {_short(path)} needs its passphrase" for path in tried.locked]
    here += tried.broken
    copy = f"run ssh-copy-id {target.login} to install your key"
    if tried.refused:
        why = f"refuses the login of {target.user}; keys tried: {', '.join(tried.refused)}"
        return Problem("", str(address), why, "\n".join([*here, copy]))
    if here:
        return Problem("", str(address), "refuses the login: no key of this machine can be used", "\n".join(here))
    looked = ", ".join(_short(path) for path in target.keys)
    hint = f"run ssh-keygen -t ed25519 to make a key, then {copy}"
    return Problem("", str(address), f"refuses the login: there is no key in an SSH agent, nor at {looked}", hint)


def _keys(target: Target, tried: _Tried) -> Iterator[tuple[Any, str]]:
    """Keys to try, with their names: first those of the agent, then files, last files that need a passphrase."""
    import paramiko

    offered = set()
    mine = {blob for path in target.keys for blob in _public(path)}
    try:
        agent = paramiko.Agent().get_keys()
    except (paramiko.SSHException, OSError):
        agent = ()
    for key in agent:
        if not target.only_these or key.asbytes() in mine:
            offered.add(key.asbytes())
            yield key, f"{key.comment or key.get_name()} of the agent"
    for path in target.keys:
        if offered.intersection(_public(path)):
            continue
        load = _loader(path)
        try:
            yield load(None), _short(path)
        except FileNotFoundError:
            continue
        except (paramiko.PasswordRequiredException, TypeError):  # cryptography's TypeError: the passphrase is missing
            tried.locked.append(path)
        except (paramiko.SSHException, paramiko.UnknownKeyType, ValueError, OSError) as error:
            tried.broken.append(f"{_short(path)} cannot be used: {getattr(error, 'strerror', None) or error}")
    for path in list(tried.locked):
        key = _unlocked(path, tried)
        if key is not None:
            yield key, _short(path)


def _loader(path: Path) -> Callable[[str | None], Any]:
    import paramiko

    return lambda passphrase: paramiko.PKey.from_path(str(path), passphrase)


def _unlocked(path: Path, tried: _Tried) -> Any:
    """The key, when a user at a terminal types its correct passphrase; else None."""
    import paramiko

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    for _ in range(_ASKED):
        typed = getpass.getpass(f"Passphrase for {_short(path)}: ", sys.stderr)
        if not typed:
            return None
        try:
            key = _loader(path)(typed)
        except (paramiko.SSHException, ValueError, TypeError):
            continue
        tried.locked.remove(path)
        return key
    return None


def _public(path: Path) -> Sequence[bytes]:
    """The public half of a key file, if KEY.pub exists."""
    try:
        entries = known_hosts.parse_entries("- " + Path(f"{path}.pub").read_text(), str(path))
    except (OSError, UnicodeDecodeError):
        return ()
    return [e.key for e in entries]


def _typed(path: Path) -> str:
    """A path as a word for a shell, with ~ unquoted."""
    home, tilde, rest = _short(path).partition("~/")
    return f"~/{shlex.quote(rest)}" if tilde and not home else shlex.quote(str(path))


def _short(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)
