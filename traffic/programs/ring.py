#!/usr/bin/env python3
"""A ring over TCP: ./inv launch --ranks 4 -- python3 traffic/programs/ring.py [KIB] [TURNS].

Each rank sends KIB (default 64) to the next one, and receives as much from the previous one, TURNS times (default 10).
What to look at: ./inv paths has a flow for the data of each pair, and one for its acknowledgements in the other
direction. Only the standard library is needed.
"""

import os
import socket
import sys
import threading
import time

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PORT, PATIENCE_S = 7000 + RANK, 20


def connect(name, port):
    """Connect to a rank that may not listen yet."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            # From the address of this rank: so its NIC is used, if the host has several.
            return socket.create_connection((name, port), PATIENCE_S, (f"rank{RANK}", 0))
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def main(kib=64, turns=10):
    """Send and receive, and check every byte."""
    family = socket.AF_INET6 if ":" in os.environ["MASTER_ADDR"] else socket.AF_INET
    with socket.create_server(("", PORT), family=family) as server:
        following = (RANK + 1) % SIZE
        out = connect(f"rank{following}", 7000 + following)
        into, _ = server.accept()
    into.settimeout(PATIENCE_S)
    began, size = time.monotonic(), kib * 1024
    for turn in range(turns):
        data = bytes([(RANK + turn) % 256]) * size
        sender = threading.Thread(target=out.sendall, args=(data,))
        sender.start()
        got = bytearray()
        while len(got) < size:
            part = into.recv(size - len(got))
            if not part:
                sys.exit(f"the previous rank ended in turn {turn}")
            got += part
        sender.join()
        if got != bytes([((RANK - 1) % SIZE + turn) % 256]) * size:
            sys.exit(f"wrong bytes in turn {turn}")
    seconds = time.monotonic() - began
    print(f"{turns} x {kib} KiB in {seconds:.3f} s, {turns * size * 8 / seconds / 1e6:.1f} Mb/s", flush=True)
    out.close()
    into.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
