"""The verb `capture`: at a port (capture_live.py), or of a file, which is a part of a plugin."""

from __future__ import annotations

from heddle.base.plugins import function
from heddle.cli import helptexts
from heddle.cli.console import Console
from heddle.cli.verbs import verb
from heddle.host import packages


@verb(
    group="Traffic",
    help=helptexts.CAPTURE,
    positional=["port"],
    packages=lambda typed: () if typed["read"] else packages.CAPTURE,
    root=lambda typed: not typed["read"],
    files_in=["read"],
    files_out=["out_"],
)
def capture(
    out: Console,
    port: str | None = None,
    read: str | None = None,
    live: bool = False,
    count: int | None = None,
    seconds: float = 10.0,
    filter_: str = "all",
    out_: str | None = None,
    lab: str | None = None,
) -> None:
    """Show the packets at a port, one line each with the fields of RoCE; or write a file; or dissect a file.

    ./inv capture rtsw1:eth1 --filter roce --count 20. It ends by count or time, whichever is first, or by Ctrl-C, and
    keeps its packets. Outgoing packets are seen after the port's queue, incoming ones before any BPF program: see
    docs/capture.md.
    --live adds to each line the predicted path of its queue pair, and the bytes that wait in the packet's queue.
    --read FILE dissects a pcap or pcapng file from anywhere. It checks every ICRC, and lists pauses and other packets.
    For each queue pair it lists PSNs, gaps, retransmissions, marks, NAKs and CNPs. It needs no lab and no root.
    """
    if read is not None:
        filtered = f"--filter {filter_}" if filter_ != "all" else ""
        beside = {str(port): port, "--live": live, f"--out {out_}": out_, f"--lab {lab}": lab, filtered: filtered}
        function("read-capture", f"capture --read {read}")(out, read, count, beside)
        return
    from heddle.cli.capture_live import bounds_of, run_capture

    run_capture(out, lab, port, bounds_of(count, seconds, out_), filter_, out_, live=live)
