"""The options of verbs with many of them, and those that several verbs share: help, and what completion offers.

A name in the verb's signature says the rest: kind and default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from heddle.base import extras
from heddle.base.declared import OUTPUT
from heddle.cli import completion, nccltests
from heddle.cli.argv import Option, Options, group

# Names of nodes of the presets, for examples in hints and in the texts below.
EXAMPLE_SWITCH: Final = "ctsw1"
EXAMPLE_SWITCHES: Final = "rtsw1,rtsw2"
EXAMPLE_PORT: Final = "rtsw1:eth1"
EXAMPLE_ROW: Final = "rtsw1 50001 10.0.1.0/24 eth3"
# The options of parameters with these names, in every verb. A verb that gives only a help keeps the rest.
SHARED: Final[Mapping[str, Option]] = {
    "dialect": Option(
        "containerlab's kind of switches: linux (any version), frr (0.80 or newer), or c9s for Kubernetes",
        "heddle.render.dialects:DIALECTS",
    ),
    "fabric": Option("preset name or fabric file", "heddle.spec.load:presets", listed="presets:"),
    "lab": Option("name of a running lab; not needed when only one is running", "heddle.base.state:labs"),
    "mgmt": Option(
        "management network of containers: own (one for this lab), or none (nodes have no eth0)",
        "heddle.render.dialects:MGMTS",
    ),
    "mode": Option(values="heddle.fabric.hashmodes:MODES", listed="one of"),
    "node": Option(values=completion.nodes),
    "out": Option(short="-o"),
    "placement": Option(values=completion.placements),
    "port": Option(values=completion.ports),
    "run": Option(
        "ID or number of a run (./inv runs lists them), or last (default: last)", completion.runs, value="ID"
    ),
    "runtime": Option(
        "where nodes run: netns (namespaces), containerlab (containers) or kubernetes (pods)",
        "heddle.runtimes.registry:RUNTIMES",
    ),
    "set": Option(
        "set a key of the fabric file, for example routing.ecmp=flow; can be repeated",
        completion.file_settings,
        value="PATH=VALUE",
    ),
    "switch": Option(values=completion.switches),
    "timeout": Option(value="SECONDS"),
}
_FABRIC, _LAB, _RUN_ID, _RUNTIME, _SET = (SHARED[name].help for name in ("fabric", "lab", "run", "runtime", "set"))
_FILE: Final = "FILE"

EXEC: Final[Options] = {
    "node": "rtsw1, ctsw2, host3, ...; several with commas or a pattern in quotes: rtsw1,ctsw2 or 'rtsw*'",
    "cmd": "the command with its arguments and flags",
}

GRAPH: Final[Options] = {
    "lab": f"{_LAB}; the picture shows one of its runs",
    "fabric": "draw this fabric instead of a running lab",
    "set": f"{_SET} (with --fabric)",
    "kind": Option(
        "svg, png, pdf; by containerlab: mermaid, dot, drawio (default: by the suffix of --out, else svg)",
        "heddle.views.graph:KINDS",
    ),
    "out": "file to write (default: LAB.svg; text kinds go to stdout)",
}


KUBERNETES: Final = group(
    "Kubernetes",
    {
        "context": "context of the kubeconfig (default: its current one)",
        "namespace": Option("namespace of the cluster (default: the one of the context, or heddle)", value="NS"),
        "image": "image of the shards (default: heddle-fabric:latest, which must be on the nodes)",
        "pull_secret": Option("Secret with the password of the image's registry", value="SECRET"),
        "tunnel_port": "UDP port of the tunnels between shards (default: 14789)",
        "pod": Option("a pod's template: node selector, tolerations, priority, resources, annotations", value="FILE"),
    },
)

DOWN: Final[Options] = {
    "all": "take all of your labs down",
    "force": "also a lab of another user or state directory",
    "runtime": Option("kubernetes: look for a lab in pods that has no record", "heddle.runtimes.registry:RUNTIMES"),
    **{key: each for key, each in KUBERNETES.items() if key in ("context", "namespace")},
}

HASHING: Final[Options] = {
    "mode": "the new mode; without it, the current modes are shown",
    "switch": "these switches only: rtsw1,ctsw2; can be repeated",
    "set": Option(
        "set a key of routing.hash, or seed or resilient: gap=20ms, udf.bytes=2; can be repeated",
        completion.hash_settings,
        value="PATH=VALUE",
    ),
    "table": Option(
        "exact-match: a file with rows of switch, sport, prefix, port, and backup if wanted (.yml or .yaml; else CSV)",
        value=_FILE,
    ),
    "entry": Option(f"exact-match: add or change a row, for example '{EXAMPLE_ROW}'; can be repeated", value="ROW"),
    "clear": "exact-match: empty the tables first",
    "explain": Option(
        "show each step for a flow: a QP number of a run, or host1,host5,qpn=0x101,sport=50000", value="FLOW"
    ),
    "run": f"with --explain: {_RUN_ID}",
}

_SHARDS: Final = Option(
    "number of shards, a pod each; without it, as few as fit into machines of 8 GiB, at least 2", value="N"
)
UP: Final[Options] = {
    "fabric": "preset name, fabric file, or your own containerlab topology (.clab.yml with nodes of kind linux)",
    "name": "override the lab name",
    "dialect": Option(
        "containerlab's kind of switches: linux (any version), or frr (0.80 or newer)",
        "heddle.render.dialects:DEPLOYED",
    ),
    "dry_run": "print the commands as a shell script, or with --shards the cut and its cost; run nothing",
    "shards": _SHARDS,
    **KUBERNETES,
    "repair": "repair a lab that is already running, and report each repair",
    "rollback": "take the lab down if it does not converge",
    "timeout": "seconds to wait for convergence (default: by size)",
    "profile": "show seconds, CPU seconds and netlink requests of each step, and milliseconds a port",
}

RENDER: Final[Options] = {
    "out": "directory to write",
    "kind": Option("instead, the fabric for another tool", "heddle.render.render:TOPOLOGIES", listed="one of"),
    "name": "override the lab name",
    "runtime": Option("kubernetes: write the manifests of the shards, too", "heddle.runtimes.registry:RUNTIMES"),
    "shards": _SHARDS,
    **{key: each for key, each in KUBERNETES.items() if key not in ("context", "tunnel_port")},
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

PATHS: Final[Options] = {
    "now": "the paths that the run's QPs would take now, and how many have moved",
    "all": "show every QP, not only 16",
    "qp": Option("these QPs only: 17, 0x11, 17-20, or several with commas; can be repeated", value="N"),
    "host": Option("only QPs from or to these: host1, host1:eth2, 'host*'; can be repeated", completion.nics),
    "port": "only QPs that use the link of these ports, in either direction: rtsw1:eth1, or rtsw1; can be repeated",
}

PREDICT: Final[Options] = {
    "workload": Option(
        "the traffic: a file (.yml, .csv, or a trace), the name of a workload in traffic/, or a word. "
        "Words: a collective, ring, permutation, shift:N, incast:N. Keys can follow: ring,qps=16",
        completion.workloads,
    ),
    "mode": Option(
        "mode of the first rows and tables (default: as in the fabric file)",
        "heddle.fabric.hashmodes:PREDICTED",
    ),
    "trials": Option("number of other sets of hash seeds, for mean, p5 and p95", value="N"),
    "down": Option("ports or nodes that are down: rtsw1:eth3,ctsw2", completion.ports),
    "drain": Option("switches that are drained by BGP: ctsw1", completion.switches),
    "csv": Option("write one line per link to this file", value=_FILE),
    "heatmap": Option("draw the load of every link to this file: load.svg, load.png or load.pdf", value=_FILE),
    "time": "forecast the time of iterations and jobs, and which links bound it",
    "calibrate": Option(
        "with --time: divide rates by what this run took over its own forecast", completion.runs, value="RUN"
    ),
    "flows": Option("with --time: write all messages: HPCC's fct.txt or flow.txt, or htsim's FILE.htsim", value=_FILE),
    "background": Option("with --time: what other jobs leave this one, as faults for ./inv run", value="JOB"),
}

QUEUES: Final[Options] = {
    "action": Option(
        "set: change thresholds of a running lab; reset: set all counters to 0", "heddle.cli.queues_verb:ACTIONS"
    ),
    "setting": Option(
        "keys below `queues` of the fabric file, for example ecn.kmax=800KB; several are set together",
        completion.queue_settings,
    ),
    "switch": "these switches only: ctsw1,ctsw2 or a pattern in quotes; can be repeated",
    "port": "show these ports only: rtsw1:eth3, rtsw1, 'host*:eth1'; can be repeated",
    "class": "show these classes only: 3,6",
    "all": "show quiet queues, too",
    "watch": "redraw the table until Ctrl-C",
    "every": "with --watch: seconds between two readings",
    "seconds": "with --watch: end after this many seconds",
}

INSPECT: Final[Options] = {
    "node": "these nodes only, with one row per port: rtsw1, rtsw1,host2, 'ctsw*'; can be repeated",
}

PLOT: Final[Options] = {
    "what": Option(
        "what to draw: queues (their depth over time), or run (bandwidth, uplinks, iterations)",
        "heddle.cli.picture_verbs:WHATS",
    ),
    "runs": Option("with run: up to four, as report takes them; otherwise the last", completion.runs),
    "port": "these ports only: rtsw1:eth3, rtsw1, 'ctsw*' (default: those with the fullest queues)",
    "class": "these classes only: 3,6",
    "out": "file to write: .svg, .png or .pdf (default: LAB-queues.svg, LAB-RUN.svg)",
}

CAPTURE: Final[Options] = {
    "port": "rtsw1:eth1; rtsw1 for all its ports; several with commas",
    "live": "print one line per packet with notes on path and queue, also with --out",
    "read": Option("dissect a capture file (pcap or pcapng, also gzip) instead of capturing at a port", value=_FILE),
    "count": "end after so many packets (default: 1000; with --out no limit); with --read: lines to print (default 10)",
    "seconds": "end after this many seconds",
    "filter": Option("roce, bgp, all, or a pcap-filter expression in quotes", "heddle.lab.capture:FILTERS"),
    "out": "write a capture file (pcapng) instead of printing one line per packet",
}

RUNS: Final[Options] = {
    "lab": "runs of this lab (default: of all labs)",
    "remove": Option("remove a run by its ID or number; can be repeated", completion.runs, value="ID"),
}

_LAB_OF_RUNS: Final = "whose runs, up or not; not needed while only one lab has runs"
REPORT: Final[Options] = {
    "runs": Option(
        "which runs: IDs or numbers that ./inv runs lists, last, LAB:ID, or directories; otherwise the last",
        completion.runs,
    ),
    "out": "file to write to; otherwise report-RUN.html here",
    "lab": _LAB_OF_RUNS,
}

COMPARE: Final[Options] = {
    "a": Option(
        "a run: an ID or number that ./inv runs lists, last, LAB:ID, its directory; or a file of nccl-tests",
        completion.runs,
    ),
    "b": Option("the run to compare with it", completion.runs),
    "report": "write the comparison and both runs as an HTML file",
    "out": "the HTML file; otherwise compare-A-B.html here",
    "accept_unreliable": "give verdicts on UNRELIABLE runs, too; their rows say so",
    "lab": _LAB_OF_RUNS,
}

# What `run` and `export` do with figures (outputs.py).
OUTPUTS: Final[Options] = group(
    OUTPUT,
    {
        "json": Option(
            "write nccl-tests' JSON (version 3) to this file, or to the next free name", "", "", _FILE, short="-J"
        ),
        "csv": Option("write a CSV file with one row for each size", value=_FILE),
        "inspector": Option("write JSON lines of NCCL's Inspector", value=_FILE),
        "min_busbw": Option("exit 1 when the busbw of a size is below it, in GB/s (emulated)", value="X"),
        "per_iter_timing": Option("1: print the figures of iterations, as in nccl-tests", value="N", short="-I"),
        "per_iter_skip": Option("leading iterations that these figures leave out", value="N", short="-K"),
    },
)

EXPORT: Final[Options] = {
    "run": "a run: an ID or number that ./inv runs lists, LAB:ID, or a directory",
    **OUTPUTS,
    **group(
        OUTPUT,
        {
            "perfetto": Option("write iterations, messages, queues and faults for ui.perfetto.dev", value=_FILE),
            "otg": Option("write a row for each QP in the columns of Open Traffic Generator", value=_FILE),
        },
    ),
}

# Of `run`, beside the options of a run (traffic/options.py).
RUN: Final[Options] = {
    **OUTPUTS,
    "workload": Option(
        "the jobs of a file, or of one in traffic/, instead of these options",
        "heddle.endpoints.workloadfile:workloads",
        value="FILE",
        group="What runs",
    ),
    "interference": Option("measure each job of --workload alone, too, and compare", group="What runs"),
    **group(
        nccltests.GROUP,
        {
            "minbytes": Option("in place of --size: smallest size (default: 32M)", short="-b", excludes="size"),
            "maxbytes": Option("largest size (default: 32M)", short="-e", excludes="size"),
            "stepfactor": Option("factor between sizes (default: 1, which is none)", short="-f", excludes="size"),
            "stepbytes": Option("bytes between sizes, without -f (default: 1M)", short="-i", excludes="size"),
            "check": Option("every result is checked here, also with 0", value="N", short="-c"),
            "run_cycles": Option(
                "measure all sizes N times, each time from a common start of all ranks", value="N", short="-N"
            ),
            **{key: each for key, each in OUTPUTS.items() if key.startswith("per_iter")},
        },
    ),
    **group(
        "Lab",
        {
            "lab": _LAB,
            "fabric": "bring this fabric up for the run, and take it down after it",
            "runtime": f"{_RUNTIME} (with --fabric)",
            "set": f"{_SET} (with --fabric)",
        },
    ),
}

_NCCL: Final = [name for name, each in RUN.items() if isinstance(each, Option) and each.group == nccltests.GROUP]
PERF: Final[Options] = {
    "program": Option(
        "all_reduce, all_gather, alltoall, ..., also with _perf",
        "heddle.runs.ncclnames:PROGRAMS",
        group="What runs",
    ),
    **{name: option for name, option in RUN.items() if name not in ("workload", "interference")},
}

# Verb -> the parameters that its `--help` lists; `--help all` lists all.
USUAL: Final[Mapping[str, Sequence[str]]] = {
    "run": (
        "collective", "algorithm", "iters", "workload", "ranks", "placement", "size", "qps", "sport", "transport", "cc",
        "admission", "fault", "lab", "fabric", "json", "format", "on", "yes",
    ),
    "perf": (
        "program", "iters", "warmup", "average", "datatype", "op", "root", *_NCCL, "ranks", "placement", "lab",
        "fabric", "json", "format", "on", "yes",
    ),
}  # fmt: skip

TUNER: Final[Options] = {
    "collective": Option("what to measure", "heddle.runs.tuning:COLLECTIVES", listed="one of", group="What runs"),
    **group(
        "What is varied",
        {
            "algorithm": Option(
                "ring, tree, as NCCL calls them (default: all that NCCL has); commas", ("ring", "tree")
            ),
            "channels": "numbers of channels, with commas (default: channels are not varied)",
            "qps": "numbers of queue pairs per connection, with commas (default: 1,4)",
        },
    ),
    **{name: RUN[name] for name in ("lab", "fabric", "runtime", "set")},
    **group(
        OUTPUT,
        {
            "conf": Option("the tuner file to write", value=_FILE),
            "csv": Option("write the measurements, for the plugin's optimize_config.py", value=_FILE),
        },
    ),
}


def target_of(given: Mapping[str, object]) -> dict[str, str]:
    """Those that were given; a file of --pod is read. InputError for what is wrong in it."""
    found = {key: str(value) for key, value in given.items() if value is not None}
    if "pod" in found:
        from heddle.base.files import real
        from heddle.runtimes.clusterkind import CLUSTERS

        found["pod"] = CLUSTERS[extras.KUBERNETES].read_template(real(found["pod"]), found["pod"])
    return found
