"""What `./inv VERB --help` says of flags that several verbs have, or that are many.

Words that a table of the program has (collectives, modes, transports, presets) are put behind these: offers.listed.
"""

from __future__ import annotations

from typing import Final

# Nodes as in the presets, for examples in hints and in the texts below.
EXAMPLE_SWITCH: Final = "ctsw1"
EXAMPLE_SWITCHES: Final = "rtsw1,rtsw2"
EXAMPLE_ROW: Final = "rtsw1 50001 10.0.1.0/24 eth3"
FABRIC: Final = "preset name or fabric file"
LAB: Final = "which running lab; not needed while only one runs"
DIALECT: Final = "what the topology is written for: linux (every containerlab), frr (its own kind, 0.80 and newer), c9s"
MGMT: Final = "of containers: own, a management network for this lab alone, or none: nodes have no eth0"
RUNTIME: Final = "where nodes run: netns (namespaces) or containerlab (containers)"
TOPOLOGY: Final = "a containerlab topology; the same as naming it without this flag"
RUN_ID: Final = "which run: an ID or number that ./inv runs lists, or last; otherwise the last"
SET: Final = "path=value of the fabric file, as routing.ecmp=flow; may be given many times"

HASHING: Final = {
    "mode": "the mode to change to; without one, those that the switches have are shown",
    "switch": "some switches only: rtsw1,ctsw2; may be given many times",
    "set": "key=value of routing.hash, or seed or resilient, as gap=20ms, udf.bytes=2; may be given many times",
    "table": "exact-match: a file of rows switch, sport, prefix, port (CSV, or YAML by its name)",
    "entry": f"exact-match: add or change a row, as '{EXAMPLE_ROW}'; may be given many times",
    "clear": "exact-match: empty the tables first",
    "explain": "every step for a flow: a QP number of a run, or host1,host5,qpn=0x101,sport=50000",
    "run": "with --explain: " + RUN_ID,
    "lab": LAB,
}

UP: Final = {
    "fabric": "preset name, fabric file, or containerlab topology (a .clab.yml of your own, with nodes of kind linux)",
    "name": "name of the lab, in place of the file's",
    "topology": TOPOLOGY,
    "runtime": RUNTIME,
    "set": SET,
    "dialect": DIALECT,
    "mgmt": MGMT,
    "explain": "print what would run as a shell script, and run nothing",
    "repair": "repair the lab when it runs already, and report each repair",
    "rollback": "take the lab down again when it does not converge",
    "timeout": "seconds to wait for convergence; otherwise by size",
}

# The columns of `./inv hashing` behind switch, mode and seed; the four last ones count packets since the lab is up.
HASHING_COLUMNS: Final = {
    "policy": "the kernel's fib_multipath_hash_policy",
    "options": "those that differ from the default",
    "exact": "rows of the exact-match table",
    "steered": "RoCEv2 packets since up that the program sent to a port of its choice",
    "fell back": "packets that it left to ECMP",
    "re-picks": "flowlets that began after a gap",
    "misses": "packets without a row in the exact-match table, or without room in the flowlet table",
}

PATHS: Final = {
    "lab": LAB,
    "run": RUN_ID,
    "now": "the run's QPs over the fabric as it is now, and the share that moved",
    "all": "every QP, in place of the first 16",
    "qp": "these QPs only: 17, 0x11, 17-20, or several with commas; may be given many times",
    "host": "only QPs from or to these: host1, host1:eth2, 'host*'; may be given many times",
    "port": "only QPs that cross the link at these ports, either way: rtsw1:eth1, or rtsw1; may be given many times",
    "predict": "a fabric on paper instead of a lab: " + FABRIC,
    "plan": "what is sent: a file (.yml, .csv), a plan of traffic/ by its name, or a word: a collective, ring, "
    "permutation, shift:N, incast:N; keys may follow: ring,qps=16",
    "set": SET + " (with --predict)",
    "mode": "hashing mode to look at first; otherwise the file's",
    "trials": "draws of other hash seeds, for mean, p5 and p95",
    "down": "ports or nodes that are down: rtsw1:eth3,ctsw2",
    "drain": "switches that BGP drains: ctsw1",
    "csv": "write a line a link to this file",
    "heatmap": "draw the load of every link: load.svg, load.png or load.pdf",
}

QUEUES: Final = {
    "action": "set, to change the thresholds of a running lab; reset, to set all counters to 0",
    "setting": "path=value below `queues` of the fabric file, as ecn.kmax=800KB; several at once",
    "switch": "these switches only: ctsw1,ctsw2 or a pattern in quotes; may be given many times",
    "port": "show these ports only: rtsw1:eth3, rtsw1, 'host*:eth1'; may be given many times",
    "class": "show these classes only: 3,6",
    "all": "quiet queues, too",
    "watch": "draw again and again, until Ctrl-C",
    "every": "seconds between two drawings",
    "seconds": "after which --watch ends",
    "lab": LAB,
}

INSPECT: Final = {
    "lab": LAB,
    "node": "these nodes only, with a row a port: rtsw1, rtsw1,host2, 'ctsw*'; may be given many times",
}

PLOT: Final = {
    "what": "queues: depth over time",
    "port": "these ports only: rtsw1:eth3, rtsw1, 'ctsw*'; otherwise those whose queues held most",
    "class": "these classes only: 3,6",
    "out": "file to write to, svg, png or pdf by its ending; otherwise LAB-queues.svg here",
    "run": RUN_ID,
    "lab": LAB,
}

RUNS: Final = {
    "lab": "runs of one lab; otherwise of every lab",
    "remove": "remove a run by its ID or number; may be given many times",
}

RUN: Final = {
    "collective": "what the ranks do together (incast: all to rank 0)",
    "algorithm": "by which way; otherwise the collective's first",
    "ranks": "how many; otherwise every NIC",
    "size": "bytes a rank: 8, 64K, or 64K:16M:x2; rounded down as in nccl-tests",
    "qps": "queue pairs of a connection",
    "qp_mode": "split (each message over all QPs) or round-robin (messages in turn)",
    "iters": "iterations measured",
    "warmup": "iterations before",
    "sport": "UDP source ports: qpn, fixed[:PORT], list:A,B,C",
    "chunk": "bytes of one message",
    "window": "packets that a queue pair may have unacknowledged; otherwise 64 a connection, shared by its queue pairs",
    "timeout": "until a packet counts as lost: 8 to 31 for 4.096 us x 2^N; otherwise by rates, queues and pauses",
    "placement": "ranks on hosts: block, cyclic, or host names with commas",
    "split": "into communicators at the same time, as NCCL_TESTS_SPLIT: 'MOD 2', 'AND 0x1'; auto: one per plane",
    "transport": "protocol of the queue pairs; rc is InfiniBand's reliable connection",
    "fastpath": "compiled code for the NICs: on, off, or auto, where this machine and the transport have it",
    "bucket": "how finely queues are recorded over time, for plot: 1ms to 100ms",
    "lab": LAB,
    "fabric": "bring this fabric up for the run, and down after it",
    "runtime": RUNTIME + " (with --fabric)",
    "set": SET + " (with --fabric)",
}
