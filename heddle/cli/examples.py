"""Two examples for each verb: what `./inv VERB --help` shows at its end.

In:  nothing. An example is a line that can be typed, and one sentence on what it does.
A test parses each line with the program's own parser, so an example cannot become wrong without a red test. Lines are
for the presets `zone` and `tiny`: nodes and ports exist there.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Example:
    """One example. line: with the program's name, as `./inv up zone`; does: a sentence without its full stop."""

    line: str
    does: str

    @property
    def words(self) -> list[str]:
        """The verb and what follows it."""
        return shlex.split(self.line)[1:]


def _examples(*pairs: tuple[str, str]) -> tuple[Example, ...]:
    return tuple(Example(f"./inv {line}", does) for line, does in pairs)


EXAMPLES: Final[Mapping[str, tuple[Example, ...]]] = {
    "demo": _examples(
        ("demo", "run all three parts and print a table that compares them"),
        ("demo --format json", "print the same result as one JSON document"),
    ),
    "tour": _examples(
        ("tour", "go through the main commands, one Enter each"),
        ("tour --yes", "watch it run through without questions"),
    ),
    "doctor": _examples(
        ("doctor", "check this machine, and print the command that installs what is missing"),
        ("doctor --place ssh:root@server1", "check a lab server"),
    ),
    "up": _examples(
        ("up zone", "start preset zone and wait until all routes are installed"),
        (
            "up tiny --name lab2 --set routing.ecmp=e-ecmp",
            "start preset tiny as lab2, with hashing on the destination QP",
        ),
    ),
    "status": _examples(
        ("status", "list all running labs"),
        ("status zone", "show lab zone in detail: BGP sessions, faults"),
    ),
    "inspect": _examples(
        ("inspect", "list the nodes of the running lab"),
        ("inspect zone --node rtsw1", "show each port of rtsw1: address, peer, rate, BGP state"),
    ),
    "exec": _examples(
        ("exec rtsw1 vtysh -c 'show bgp summary'", "ask FRR on one switch"),
        ("exec 'host*' ip -br address", "run a command on all hosts; each line starts with its node"),
    ),
    "launch": _examples(
        (
            "launch host1 host3 -- ib_write_bw --tclass=98",
            "write from host1 to host3 by soft-RoCE, in the lossless class",
        ),
        (
            "launch host1 host3 --place vm -- ib_send_bw -s 65536 -n 100 --tclass=98",
            "100 messages of 64 KiB, in the VM, whose kernel has rxe",
        ),
        ("launch host1 host3 --place vm -- ib_read_lat", "the time of small reads"),
    ),
    "capture": _examples(
        ("capture rtsw1:eth1 --filter roce --count 20", "print 20 RoCE packets of one port, a line each"),
        ("capture rtsw1,ctsw1 --seconds 5 --out two.pcapng", "merge the ports of two switches into one file"),
        (
            "capture rtsw1:eth1 --live --filter roce",
            "print each packet with the path of its QP and the depth of its queue",
        ),
        ("capture --read two.pcapng", "check its ICRCs; list queue pairs, gaps, retransmissions, marks, pauses"),
    ),
    "run": _examples(
        ("run --collective all-reduce --size 64K:1M:x2", "run a ring all-reduce of several sizes"),
        (
            "run --collective incast --qps 4 --fabric tiny",
            "start preset tiny, send from all ranks to rank 0, and take it down",
        ),
        ("run --transport srd --entropy 8", "spray the packets of each queue pair over eight UDP source ports"),
        (
            "run --collective incast --admission on --slow host1=25%",
            "senders wait for the CTS of a receiver that processes slowly",
        ),
        (
            "run --admission on --admission-set buffsize=128K",
            "a budget of 128 KiB in flight to each receiver",
        ),
        ("run --fault rtsw1:eth3,loss=1/256", "a link that loses packets, for the time of this run"),
    ),
    "hashing": _examples(
        ("hashing", "show the mode and the seed of every switch"),
        ("hashing e-ecmp --switch rtsw1,rtsw2", "hash on the destination QP, too, on two switches"),
    ),
    "paths": _examples(
        ("paths", "show the paths of the last run, from three sources"),
        ("paths --predict zone --plan ring,qps=16", "predict the link loads of a ring; no lab is needed"),
    ),
    "validate": _examples(
        ("validate", "run every check on the running lab"),
        ("validate zone --format json", "check lab zone; a script reads the key ok"),
    ),
    "render": _examples(
        ("render zone", "write the topology and FRR files of preset zone to out/"),
        ("render zone --dialect frr --out zone-frr", "write them for containerlab's own kind for FRR"),
    ),
    "graph": _examples(
        ("graph", "draw the running lab, with the link loads of the last run"),
        ("graph --fabric zone --out zone.png", "draw a preset; no lab is needed"),
    ),
    "down": _examples(
        ("down", "take the only running lab down"),
        ("down --all", "take all labs down"),
    ),
    "plot": _examples(
        ("plot", "draw the queues of the last run that held most"),
        ("plot --port 'ctsw*' --class 3 --out spines.png", "draw class 3 of all spine ports"),
    ),
    "fault": _examples(
        (
            "fault rtsw1:eth1 --loss 1/256 --corrupt 0.1%",
            "lose 1 packet in 256 behind rtsw1:eth1, and corrupt 1 in 1000",
        ),
        ("fault --clear", "clear the faults of all links"),
    ),
    "queues": _examples(
        ("queues --watch", "show depth, marks and pauses, updated until Ctrl-C"),
        ("queues set ecn.kmin=40KB ecn.kmax=160KB", "change the ECN thresholds of all switches; no packet is lost"),
    ),
    "dashboard": _examples(
        ("dashboard", "serve the live page and print its address"),
        ("dashboard zone --port 9000", "open it at lab zone, on port 9000"),
    ),
    "compare": _examples(
        ("compare 1 2", "compare the first two runs of a lab, and judge noise"),
        ("compare zone:3 tiny:2 --report", "write the comparison of runs of two labs as an HTML file"),
    ),
    "report": _examples(
        ("report", "write the last run as an HTML file"),
        ("report 3 5 --out both.html", "write two runs as one file"),
    ),
    "runs": _examples(
        ("runs", "list the runs of all labs"),
        ("runs zone --remove 1", "remove the first run of lab zone"),
    ),
    "mcp": _examples(
        ("mcp", "serve an assistant that started this line: tools that only read"),
        ("mcp --allow-run", "also let it run collectives"),
    ),
    "lab": _examples(
        ("lab start 02", "bring up the fabric of workshop unit 02, and list its steps"),
        ("lab check", "check each step of the running unit on the live fabric"),
        ("lab answer links 1", "answer the question of a step"),
    ),
    "explain": _examples(
        ("explain MMR", "explain a term: what, why, how to see it, where to read more"),
        ("explain", "list all terms"),
    ),
    "image": _examples(
        ("image", "build the container images that are missing"),
        ("image --prune", "remove older images that no lab uses"),
    ),
    "setup": _examples(
        ("setup containerlab", "install Docker, containerlab and the images"),
        ("setup fabric --yes", "install FRR and the other system packages without a question"),
    ),
    "vm": _examples(
        ("vm up", "start the VM; then any verb runs there with --place vm"),
        ("vm up --kernel stable", "start another VM, for --place vm:stable"),
        ("vm ssh -- ip -br link", "run a command in the VM"),
        ("vm down", "end all VMs, with their labs and files"),
    ),
    "test": _examples(
        ("test", "run the tests that touch each feature once"),
        ("test unit -- -k icrc", "run the unit tests with icrc in their name"),
    ),
    "bench": _examples(
        ("bench up", "measure how long labs take to start"),
        ("bench all --format json", "measure everything and print one JSON document"),
    ),
    "lint": _examples(
        ("lint", "check style and types of the whole tree"),
        ("lint --format json", "print which linters passed as one JSON document"),
    ),
}


def examples_text(verb: str) -> str:
    """The part of a verb's help with its examples; empty for a verb without any. Fits into 80 columns."""
    found = EXAMPLES.get(verb, ())
    lines = [f"  {each.line}\n      {each.does}" for each in found]
    return "\n".join(["", "Examples", *lines, ""]) if lines else ""
