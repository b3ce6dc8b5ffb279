"""Help texts of flags, for verbs with many flags and for flags that several verbs share.

Lists of words (collectives, modes, transports, presets) are added to these texts by offers.listed.
"""

from __future__ import annotations

from typing import Final

# Names of nodes of the presets, for examples in hints and in the texts below.
EXAMPLE_SWITCH: Final = "ctsw1"
EXAMPLE_SWITCHES: Final = "rtsw1,rtsw2"
EXAMPLE_PORT: Final = "rtsw1:eth1"
EXAMPLE_ROW: Final = "rtsw1 50001 10.0.1.0/24 eth3"
FABRIC: Final = "preset name or fabric file"
LAB: Final = "name of a running lab; not needed when only one is running"
DIALECT: Final = "containerlab's kind of switches: linux (any version), frr (0.80 or newer), or c9s for Kubernetes"
MGMT: Final = "management network of containers: own (one for this lab), or none (nodes have no eth0)"
RUNTIME: Final = "where nodes run: netns (namespaces) or containerlab (containers)"
TOPOLOGY: Final = "a containerlab topology file; the same as naming it without this flag"
RUN_ID: Final = "ID or number of a run (./inv runs lists them), or last (default: last)"
SET: Final = "set a key of the fabric file, for example routing.ecmp=flow; can be repeated"

HASHING: Final = {
    "mode": "the new mode; without it, the current modes are shown",
    "switch": "these switches only: rtsw1,ctsw2; can be repeated",
    "set": "set a key of routing.hash, or seed or resilient: gap=20ms, udf.bytes=2; can be repeated",
    "table": "exact-match: a file with rows of switch, sport, prefix, port (.yml or .yaml; else CSV)",
    "entry": f"exact-match: add or change a row, for example '{EXAMPLE_ROW}'; can be repeated",
    "clear": "exact-match: empty the tables first",
    "explain": "show each step for a flow: a QP number of a run, or host1,host5,qpn=0x101,sport=50000",
    "run": "with --explain: " + RUN_ID,
    "lab": LAB,
}

UP: Final = {
    "fabric": "preset name, fabric file, or your own containerlab topology (.clab.yml with nodes of kind linux)",
    "name": "override the lab name",
    "topology": TOPOLOGY,
    "runtime": RUNTIME,
    "set": SET,
    "dialect": DIALECT,
    "mgmt": MGMT,
    "explain": "print the commands as a shell script, and run nothing",
    "repair": "repair a lab that is already running, and report each repair",
    "rollback": "take the lab down if it does not converge",
    "timeout": "seconds to wait for convergence (default: by size)",
}

# The columns of `./inv hashing` after switch, mode and seed; the last four count packets since the lab came up.
HASHING_COLUMNS: Final = {
    "policy": "the kernel's fib_multipath_hash_policy",
    "options": "options that differ from the default",
    "exact": "rows of the exact-match table",
    "steered": "RoCEv2 packets since `up` whose port the program chose",
    "fell back": "packets that it left to the kernel's ECMP",
    "re-picks": "new flowlets after a gap",
    "misses": "packets without a row in the exact-match table, or without space in the flowlet table",
}

PATHS: Final = {
    "lab": LAB,
    "run": RUN_ID,
    "now": "the paths that the run's QPs would take now, and how many have moved",
    "all": "show every QP, not only 16",
    "qp": "these QPs only: 17, 0x11, 17-20, or several with commas; can be repeated",
    "host": "only QPs from or to these: host1, host1:eth2, 'host*'; can be repeated",
    "port": "only QPs that use the link of these ports, in either direction: rtsw1:eth1, or rtsw1; can be repeated",
    "predict": "predict the loads of a fabric without a lab: " + FABRIC,
    "plan": "the traffic: a file (.yml, .csv), the name of a plan in traffic/, or a word: a collective, ring, "
    "permutation, shift:N, incast:N; keys can follow: ring,qps=16",
    "set": SET + " (with --predict)",
    "mode": "hashing mode of the first rows and tables (default: that of the fabric file)",
    "trials": "number of other sets of hash seeds, for mean, p5 and p95",
    "down": "ports or nodes that are down: rtsw1:eth3,ctsw2",
    "drain": "switches that are drained by BGP: ctsw1",
    "csv": "write one line per link to this file",
    "heatmap": "draw the load of every link to this file: load.svg, load.png or load.pdf",
}

QUEUES: Final = {
    "action": "set: change thresholds of a running lab; reset: set all counters to 0",
    "setting": "keys below `queues` of the fabric file, for example ecn.kmax=800KB; several at once",
    "switch": "these switches only: ctsw1,ctsw2 or a pattern in quotes; can be repeated",
    "port": "show these ports only: rtsw1:eth3, rtsw1, 'host*:eth1'; can be repeated",
    "class": "show these classes only: 3,6",
    "all": "show quiet queues, too",
    "watch": "redraw the table until Ctrl-C",
    "every": "with --watch: seconds between two readings",
    "seconds": "with --watch: end after so many seconds",
    "lab": LAB,
}

FAULT: Final = {
    "port": "packets that leave by these ports: rtsw1:eth3, rtsw1 (all its ports), 'ctsw*:eth1'; several with commas",
    "delay": "one way, on hardware; multiplied by k here: 500ns, 10us (netem)",
    "jitter": "the delay varies by so much, up and down; packets keep their order: 1us (netem)",
    "loss": "share of packets that is lost: 1/256, 0.5%",
    "corrupt": "share of RoCEv2 packets in which one bit is inverted: 1/256, 0.5%",
    "duplicate": "share of packets that arrives twice: 1/256, 0.5%",
    "reorder": "share of packets that skips the delay, and so overtakes others: 1/256, 0.5% (netem)",
    "both": "set or clear it in both directions of the links",
    "clear": "clear the faults of the ports, or of all ports",
    "lab": LAB,
}

INSPECT: Final = {
    "lab": LAB,
    "node": "these nodes only, with one row per port: rtsw1, rtsw1,host2, 'ctsw*'; can be repeated",
}

LAB_UNITS: Final = {
    "action": "list, start, check, hint, answer, solve or stop",
    "what": "a unit (02 or entropy); then a step for hint, or a step and a value for answer",
    "runtime": RUNTIME + " (with start; default: netns)",
    "name": "with start: name of the lab, in place of unit02",
    "fresh": "with start: begin again with a new lab, without hints and answers",
    "yes": "answer all questions with yes: apply the solution, start again with a changed file, install packages",
}

PLOT: Final = {
    "what": "what to draw: queues (their depth over time), or marking (ECN marks by depth, of both markers)",
    "port": "these ports only: rtsw1:eth3, rtsw1, 'ctsw*' (default: those with the fullest queues)",
    "class": "these classes only: 3,6",
    "out": "file to write: .svg, .png or .pdf (default: LAB-queues.svg)",
    "run": RUN_ID,
    "lab": LAB,
}

VM: Final = {
    "action": "up, status, ssh, down or build (the image only)",
    "command": "with ssh: the command to run in the VM; without it, a shell",
    "kernel": "backports (default), stable or oldstable: a kernel package of Debian; with down: only this VM",
    "memory": "MiB of the VM",
    "cpus": "processors of the VM (default: those of this machine, four at most)",
    "idle": "minutes without a verb after which the VM ends; 0: never",
    "images": "with down: remove the cached images, too",
    "rebuild": "with up or build: make the image again, with the Debian packages of today",
}

CAPTURE: Final = {
    "port": "rtsw1:eth1; rtsw1 for all its ports; several with commas",
    "live": "print one line per packet with notes on path and queue, also with --out",
    "read": "dissect a capture file (pcap or pcapng, also gzip) instead of capturing at a port",
    "count": "end after so many packets (default: 1000; with --out no limit); with --read: lines to print (default 10)",
    "seconds": "end after so many seconds",
    "filter": "roce, bgp, all, or a pcap-filter expression in quotes",
    "out": "write a capture file (pcapng) instead of printing one line per packet",
    "lab": LAB,
}

RUNS: Final = {
    "lab": "runs of this lab (default: of all labs)",
    "remove": "remove a run by its ID or number; can be repeated",
}

REPORT: Final = {
    "runs": "which runs: IDs or numbers that ./inv runs lists, last, LAB:ID, or directories; otherwise the last",
    "out": "file to write to (also -o); otherwise report-RUN.html here",
    "lab": "whose runs, up or not; not needed while only one lab has runs",
}

COMPARE: Final = {
    "a": "a run: an ID or number that ./inv runs lists, last, LAB:ID, or the directory of a run",
    "b": "the run to compare with it",
    "report": "write the comparison and both runs as an HTML file",
    "out": "the HTML file (also -o); otherwise compare-A-B.html here",
    "lab": "whose runs, up or not; not needed while only one lab has runs",
}

RUN: Final = {
    "collective": "the collective (incast: all ranks send to rank 0)",
    "algorithm": "the algorithm (default: the collective's first)",
    "ranks": "number of ranks (default: one per NIC)",
    "size": "bytes per rank: 8, 64K, or 64K:16M:x2; rounded down as in nccl-tests",
    "qps": "queue pairs per connection",
    "qp_mode": "split (each message over all QPs) or round-robin (one message per QP in turn)",
    "iters": "measured iterations",
    "warmup": "iterations before the measurement",
    "sport": "UDP source ports: qpn (both QP numbers), own-qpn, rxe, fixed[:PORT], list:A,B,C",
    "chunk": "bytes per message",
    "window": "unacknowledged packets per queue pair (default: 64 per connection, shared by its queue pairs)",
    "timeout": "N of the retransmission timeout, 4.096 us x 2^N: 8 to 31 (default: by rates, queues and pauses)",
    "placement": "placement of ranks on hosts: block, cyclic, or host names with commas",
    "split": "split ranks into parallel communicators, as NCCL_TESTS_SPLIT: 'MOD 2', 'AND 0x1'; auto: one per plane",
    "transport": "protocol of the queue pairs (rc: InfiniBand's reliable connection)",
    "recovery": "what rc sends again after a loss: go-back-n, go-back-0 (the whole message), selective-repeat",
    "entropy": "UDP source ports of each queue pair of srd, used packet by packet: 1 to 256 (1: no spraying by NICs)",
    "fastpath": "compiled code for the NICs: on, off, or auto (on if this machine and the transport support it)",
    "dcqcn": "DCQCN: receivers report ECN marks by CNPs, and senders reduce their rate: on or off",
    "cc": "congestion control: none, dcqcn (as --dcqcn on), or swift (a window that follows delay and CNPs)",
    "cc_set": "parameter of the congestion control in hardware units, NAME=NUMBER; can be repeated",
    "admission": "receivers grant each message with a CTS when they have a free buffer slot, as NCCL: on or off",
    "cts_class": "traffic class of CTS packets: control or data",
    "admission_set": "parameter of admission, NAME=NUMBER: channels, buffsize, steps, cts_timeout; can be repeated",
    "slow": "HOST=PERCENT: its ranks process data at this share of their NIC's rate; can be repeated",
    "fault": "PORT,KIND=VALUE: fault of a link for this run: rtsw1:eth3,loss=1/256; kinds as in fault; can be repeated",
    "bucket": "time step of the recorded queues, for plot: 1ms to 100ms",
    "lab": LAB,
    "fabric": "bring this fabric up for the run, and take it down after it",
    "runtime": RUNTIME + " (with --fabric)",
    "set": SET + " (with --fabric)",
}
