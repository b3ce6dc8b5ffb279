"""Run a module of Heddle in this shard, as `python -m` does, in a copy of its server (server.py): `run MODULE ...`.

The server puts this file beside its socket. It has the standard library only, so that it starts quickly. The command
gets the standard streams themselves; signals are passed on. The exit code is the command's, 128 and the number for a
signal, and 69 (EX_UNAVAILABLE) without a server.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM)
_PATIENCE_S = 20.0  # for a server that starts again, or is busy
_LOOK_S = 0.05
_UNAVAILABLE = 69


def main(path: str, words: list[str]) -> int:
    """path: of the socket. Returns the exit code."""
    # The numbers of signals go through a pipe: one that comes just before poll(2) would not end it.
    signals, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            server.connect(path)
            socket.send_fds(server, [b"\0".join(map(os.fsencode, words))], [0, 1, 2])
            break
        except (FileNotFoundError, ConnectionError) as error:
            if time.monotonic() > end:
                return failed(str(error.strerror))
            time.sleep(_LOOK_S)
        except OSError as error:  # a command line that is too long for one message, or a closed stream
            return failed(str(error.strerror))
    try:
        descriptors = [server.fileno(), signals]
        while server.fileno() not in select.select(descriptors, [], [])[0]:
            server.send(os.read(signals, 64))
        code = server.recv(1)
    except ConnectionError:
        code = b""
    return code[0] if code else failed("it has ended, or has ended this command")


def failed(why: str) -> int:
    """Say that no command can run."""
    print(f"the server of agents in this shard does not answer: {why}", file=sys.stderr)
    return _UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(os.path.join(os.path.dirname(sys.argv[0]), "socket"), sys.argv[1:]))  # noqa: PTH118, PTH120 (quick)
