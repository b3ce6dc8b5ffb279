"""The verb `launch`: an RDMA program between two hosts, its server in one and its client in the other."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence

from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    help={
        "client": "the host that runs the client: data of a write or send test flow from it",
        "server": "the host that runs the server",
        "cmd": "after --: a program of perftest with its flags, for example -- ib_send_bw -q 4",
    },
    rest="cmd",
    root=True,
)
def launch(out: Console, client: str, server: str, cmd: Sequence[str] = (), lab: str | None = None) -> None:
    """Run an RDMA program between two hosts, with soft-RoCE: ./inv launch host1 host3 -- ib_write_bw --tclass=98.

    Heddle makes a device in both hosts, starts the server, and adds the device, the address index and the server's
    address to the flags. The client's output is unchanged. Programs of perftest are for example ib_write_bw and
    ib_send_bw (data from the first to the second host) and ib_read_lat (from the second to the first). Traffic class 98
    puts the data into the lossless class with ECN; without --tclass they are best effort, and the fabric may drop them.
    The kernel needs soft-RoCE in namespaces: ./inv doctor shows whether it has it, and --place vm has it.
    """
    from heddle.base.problems import InputError, Problem
    from heddle.endpoints.rdma.launching import launch as run
    from heddle.lab.opening import open_lab

    if not cmd:
        hint = f"./inv launch {client} {server} -- ib_write_bw"
        raise InputError(Problem("", f"launch {client} {server}", "has no program", hint))
    where = open_lab(lab)
    if not out.json:
        out.close()
        out.exit_code = run(where, client, server, cmd, out.observer)
        return
    with tempfile.TemporaryFile() as file:
        out.exit_code = run(where, client, server, cmd, out.observer, file)
        file.seek(0)
        printed = file.read().decode(errors="replace")
    out.result(
        {
            "lab": where.name,
            "client": client,
            "server": server,
            "command": shlex.join(cmd),
            "exit_code": out.exit_code,
            "stdout": printed,
        }
    )
