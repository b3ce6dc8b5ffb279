"""Examples of each verb: what `./inv VERB --help` shows at its end.

An example has the words after the verb, and a sentence on what the line does, without its full stop. A test parses each
line with the program's own parser, so an example cannot become wrong without a red test. Lines are for the presets
`zone` and `tiny`: nodes and ports exist there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, Mapping[str, str]]] = {
    "demo": {
        "": "run all three parts and print a table that compares them",
        "--format json": "print the same result as one JSON document",
    },
    "tour": {
        "": "go through the main commands, one Enter each",
        "--yes": "watch it run through without questions",
    },
    "doctor": {
        "": "check this machine, and print the command that installs what is missing",
        "--place ssh:root@server1": "check a lab server",
    },
    "up": {
        "zone": "start preset zone and wait until all routes are installed",
        "tiny --name lab2 --set routing.ecmp=e-ecmp": "start preset tiny as lab2, with hashing on the destination QP",
    },
    "status": {
        "": "list all running labs",
        "zone": "show lab zone in detail: BGP sessions, faults",
    },
    "inspect": {
        "": "list the nodes of the running lab",
        "zone --node rtsw1": "show each port of rtsw1: address, peer, rate, BGP state",
    },
    "exec": {
        "rtsw1 vtysh -c 'show bgp summary'": "ask FRR on one switch",
        "'host*' ip -br address": "run a command on all hosts; each line starts with its node",
    },
    "launch": {
        "--ranks 4 -- python3 traffic/programs/ring.py": "run a program on four ranks, over TCP",
        "--ranks 4 --time-limit 60s -- sh traffic/programs/iperf3.sh -t 5": "three clients of iperf3 send to rank 0",
        "host1 host3 -- ib_write_bw --tclass=98": "write from host1 to host3 by soft-RoCE, in the lossless class",
        "host1 host3 --place vm -- ib_send_bw -s 65536 -n 100 --tclass=98": (
            "100 messages of 64 KiB, in the VM, whose kernel has rxe"
        ),
        "host1 host3 --place vm -- ib_read_lat": "the time of small reads",
    },
    "experiment": {
        "": "list the experiments that Heddle has",
        "queue-pairs --repeats 5 --out results": "run one five times, and keep its figures and its runs",
        "mine.yml --list": "check an own file, and print how long it takes",
        "mine.yml --on kubernetes --namespace labs": "bring each fabric up in a pod of a cluster, several at once",
    },
    "reproduce": {
        "sigcomm24 --list": "list the experiments of a folder, without running them",
        "my/paper --only 1,3 --out results": "run two experiments of an own folder",
    },
    "capture": {
        "rtsw1:eth1 --filter roce --count 20": "print 20 RoCE packets of one port, a line each",
        "rtsw1,ctsw1 --seconds 5 --out two.pcapng": "merge the ports of two switches into one file",
        "rtsw1:eth1 --live --filter roce": "print each packet with the path of its QP and the depth of its queue",
        "--read two.pcapng": "check its ICRCs; list queue pairs, gaps, retransmissions, marks, pauses",
    },
    "diagnose": {
        "": "find the cause of the last run of the running lab",
        "--run 3 --no-probes": "judge run 3, and send no packets",
        "--lab zone --format json": "findings with evidence, also in the form of the benchmark NIKA",
    },
    "craft": {
        "host1 host3": "send a right RDMA WRITE, and show its ACK and its path",
        "host1 host3 --icrc wrong": "the same with a wrong ICRC: nothing answers",
        "host1 host3 --psn 9 --fields": "a gap in the PSNs, with every field of the packet and of the NAK",
        "host1 host3 --opcode RC_RDMA_READ_REQUEST --length 9000": "read 9000 bytes from the other host",
        "--list": "list all opcodes and fields",
    },
    "run": {
        "--collective all-reduce --size 64K:1M:x2": "run a ring all-reduce of several sizes",
        "-b 64K -e 1M -f 2 -n 10": "the same sizes, ten times each, as nccl-tests is started",
        "-b 64K -e 1M -f 2 -J run.json --min-busbw 0.005": "write nccl-tests' JSON, and exit 1 if a size is slower",
        "--collective incast --qps 4 --fabric tiny": (
            "start preset tiny, send from all ranks to rank 0, and take it down"
        ),
        "--transport srd --entropy 8": "spray the packets of each queue pair over eight UDP source ports",
        "--collective incast --admission on --slow host1=25%": (
            "senders wait for the CTS of a receiver that processes slowly"
        ),
        "--admission on --admission-set buffsize=128K": "a budget of 128 KiB in flight to each receiver",
        "--fault rtsw1:eth3,loss=1/256": "a link that loses packets, for the time of this run",
    },
    "hashing": {
        "": "show the mode and the seed of every switch",
        "e-ecmp --switch rtsw1,rtsw2": "hash on the destination QP, too, on two switches",
    },
    "paths": {
        "": "show the paths of the last run, from three sources",
        "--host host1 --run 1": "show the QPs of host1 in the first run",
    },
    "place": {
        "zone --ranks 8": "rank placements of a ring all-reduce of eight ranks",
        "zone --workload two-tenants --job b --down ctsw1": "place one job beside another, with a switch down",
        "zone --ranks 8 --out ranks.txt": "write the best one for ./inv run --placement ranks.txt",
        "zone --export slurm --out topology.conf": "write the tree of switches for Slurm",
    },
    "te": {
        "plan": "entries for the flows of the last run, and their effect on links",
        "plan --workload all-to-all,qps=4 --out te.csv": "the same for other traffic, and a table",
    },
    "predict": {
        "zone --workload ring,qps=16": "predict the link loads of a ring; no lab is needed",
        "zone --workload ring --down rtsw1:eth1 --csv loads.csv": "with a link down; write the load of every link",
    },
    "validate": {
        "": "run every check on the running lab",
        "zone --format json": "check lab zone; a script reads the key ok",
    },
    "render": {
        "zone": "write the topology and FRR files of preset zone to out/",
        "zone --dialect frr --out zone-frr": "write them for containerlab's own kind for FRR",
    },
    "import": {
        "sonic config_db.json --onto zone": "show what preset zone can apply of a switch's queues, PFC and hashing",
        "sonic config_db.json --onto zone --out mine.yml": "write a fabric file with these keys for ./inv up mine.yml",
    },
    "graph": {
        "": "draw the running lab, with the link loads of the last run",
        "--fabric zone --out zone.png": "draw a preset; no lab is needed",
    },
    "down": {
        "": "take the only running lab down",
        "--all": "take all labs down",
        "zone --runtime kubernetes --namespace labs": "remove a lab in pods whose record is damaged or gone",
    },
    "plot": {
        "": "draw the queues of the last run that held most",
        "--port 'ctsw*' --class 3 --out spines.png": "draw class 3 of all spine ports",
        "run 3 5 --out both.png": "draw two runs side by side: bandwidth, load of each uplink, iterations",
    },
    "perf": {
        "all_reduce -b 64K -e 4M -f 2": "what all_reduce_perf prints, on the running lab",
        "alltoall_perf -b 1M -e 1M -n 10 -J out.json": "the same with JSON",
    },
    "tuner": {
        "all-reduce --size 64K:1M:x4 --qps 1,4": "rings against trees, with 1 and 4 QPs: four runs",
        "--csv measured.csv --fabric tiny": "also write the measurements; preset tiny is there for these runs only",
    },
    "fault": {
        "down rtsw1:eth1": "take a link down, and wait until all routes avoid it",
        "slow-link rtsw1:eth1 --rate 10%": "give packets that leave by rtsw1:eth1 a tenth of its rate",
        "clear rtsw1": "end all faults of a switch and of its ports",
        "rtsw1:eth1 --loss 1/256 --corrupt 0.1%": "lose 1 packet in 256 behind rtsw1:eth1, and corrupt 1 in 1000",
    },
    "check": {
        "--base main:topologies/zone.yml --head topologies/zone.yml": "a fabric file against that of branch main",
        "--base zone --head my.yml --max-worst-link +5%": "exit 1 if the worst link needs more than 5 % more time",
    },
    "queues": {
        "--watch": "show depth, marks and pauses, updated until Ctrl-C",
        "set ecn.kmin=40KB ecn.kmax=160KB": "change the ECN thresholds of all switches; no packet is lost",
    },
    "dashboard": {
        "": "serve the live page and print its address",
        "zone --port 9000": "open it at lab zone, on port 9000",
    },
    "compare": {
        "1 2": "compare the first two runs of a lab, and judge noise",
        "zone:3 tiny:2 --report": "write the comparison of runs of two labs as an HTML file",
    },
    "export": {
        "--json run.json": "write the last run as nccl-tests' JSON, for its analyze_perf_json.py",
        "3 --perfetto run.json": "write run 0003 over time, for ui.perfetto.dev",
        "3 --csv run.csv -I 1": "write run 0003 as CSV, and print its table with the figures of iterations",
    },
    "report": {
        "": "write the last run as an HTML file",
        "3 5 --out both.html": "write two runs as one file",
    },
    "runs": {
        "": "list the runs of all labs",
        "zone --remove 1": "remove the first run of lab zone",
    },
    "mcp": {
        "": "serve an assistant that started this line: tools that only read",
        "--allow-run": "also let it run collectives",
    },
    "workshop": {
        "start 02": "bring up the fabric of workshop unit 02, and list its steps",
        "check": "check each step of the running unit on the live fabric",
        "answer links 1": "answer the question of a step",
        "result --out anna.txt": "write what was solved, with the path proofs, to hand it in",
    },
    "explain": {
        "MMR": "explain a term: what, why, how to see it, where to read more",
        "": "list all terms",
        "docs/paths.md": "print a page of the manual",
    },
    "image": {
        "": "build the container images that are missing",
        "--prune": "remove older images that no lab uses",
    },
    "setup": {
        "containerlab": "install Docker, containerlab and the images",
        "fabric --yes": "install FRR and the other system packages without a question",
        "kubernetes --namespace labs": "check what a cluster allows in a namespace, by two pods",
    },
    "vm": {
        "up": "start the VM; then any verb runs there with --place vm",
        "up --kernel stable": "start another VM, for --place vm:stable",
        "ssh -- ip -br link": "run a command in the VM",
        "down": "end all VMs, with their labs and files",
    },
    "test": {
        "": "run the tests that touch each feature once",
        "unit -- -k icrc": "run the unit tests with icrc in their name",
    },
    "bench": {
        "up": "measure how long labs take to start",
        "all --format json": "measure everything and print one JSON document",
    },
    "docs": {
        "": "build the site of the manual in site/",
        "--out /tmp/manual": "build it in another directory",
    },
    "lint": {
        "": "check style and types of the whole tree",
        "--format json": "print which linters passed as one JSON document",
    },
}


def examples_text(verb: str) -> str:
    """The part of a verb's help with its examples; empty for a verb without any. Fits into 80 columns."""
    lines = [f"  {example_line(verb, words)}\n      {does}" for words, does in EXAMPLES.get(verb, {}).items()]
    return "\n".join(["", "Examples", *lines, ""]) if lines else ""


def example_line(verb: str, words: str) -> str:
    """The line as it is typed."""
    return f"./inv {verb} {words}".rstrip()
