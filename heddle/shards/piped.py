"""Run a command in a namespace of this shard: `python -m heddle.shards.piped NETNS COMMAND ...`.

It is asked to end (SIGINT) when the standard input ends: by the coordinator, by its end, or by that of the connection.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def main(netns: str, *argv: str) -> int:
    """Returns the command's exit code, 128 and its number for a signal."""
    words = ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={netns}", *argv]
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL)

    def until_asked() -> None:
        while os.read(0, 1 << 12):
            pass
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGINT)

    threading.Thread(target=until_asked, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
