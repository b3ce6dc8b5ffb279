"""The verbs of Heddle: parse, call, print. `./inv VERB --help` shows the docstrings and the texts of `help`.

Rooms are imported where they are used, so that `./inv --list` is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from heddle.base.extras import PLOT
from heddle.cli import helptexts as words
from heddle.cli.console import Console
from heddle.cli.program import main, typed_to_invoke
from heddle.cli.verbs import verb
from heddle.host import packages


def _files_of_paths(typed: Mapping[str, Any]) -> Sequence[str]:
    from heddle.cli.paths_predict import files_in

    return files_in(typed)


def _is_picture(typed: Mapping[str, Any]) -> bool:
    from heddle.views.graph import kind_of
    from heddle.views.style import PICTURES

    return kind_of(typed["kind"], typed["out_"]) in PICTURES


@verb(packages=packages.FABRIC, root=True)
def demo(out: Console) -> None:
    """Show Heddle in a minute: a fabric, three all-reduces, and the proof of every path.

    The same ring all-reduce runs with ECMP and 1 QP, with ECMP and 16 QPs, and with E-ECMP and 16 QPs. The lab is
    taken down at the end.
    """
    from heddle.cli.demo_verb import demo as run_demo

    result = run_demo(out.observer, out.show)
    out.result(result.to_json(), result.text())
    out.fail(*result.problems)


from heddle.cli.tour_verb import tour as tour  # noqa: E402, PLC0414 - at its place in the list of verbs


@verb()
def doctor(out: Console) -> None:
    """Check what this machine can run and how to fix what is missing.

    Exit code 3 when something that a fabric needs is missing. Nothing on the machine is changed.
    """
    from heddle.endpoints.verbs.verbscheck import rxe_check, verbs_check
    from heddle.host.doctor import examine
    from heddle.places.vm.vmcheck import vm_check
    from heddle.predict.selftest import doctor_check

    found = examine({"prediction": doctor_check, "rxe": rxe_check, "verbs": verbs_check, "vm": vm_check})
    out.result(found.to_json(), found.text())
    out.exit_code = 0 if found.ok else 3


from heddle.cli.up_verb import up as up  # noqa: E402, PLC0414 - at its place in the list of verbs


@verb(help={"lab": "show this lab in detail"}, positional=["lab"], root=True)
def status(out: Console, lab: str | None = None) -> None:
    """Show running labs, or one in detail: whether it converged, and which BGP sessions are missing and why."""
    from heddle.lab.status import status as read
    from heddle.views import labtext as views

    labs = read(lab)
    out.result({"labs": [each.to_json() for each in labs]}, views.status_text(labs, detail=lab is not None))


from heddle.cli.inspect_verb import inspect as inspect  # noqa: E402, PLC0414 - at its place in the list of verbs


@verb(
    help={
        "node": "rtsw1, ctsw2, host3, ...; several with commas or a pattern in quotes: rtsw1,ctsw2 or 'rtsw*'",
        "cmd": "the command with its arguments and flags",
        "lab": words.LAB,
    },
    rest="cmd",
    rest_after_positionals=True,
    root=True,
    name="exec",
    typed_in=True,
)
def exec_(out: Console, node: str, cmd: Sequence[str] = (), lab: str | None = None) -> None:
    """Run a command in a node: ./inv exec rtsw1 vtysh -c 'show bgp summary'. The exit code is that of the command.

    Write flags of Heddle before the node: ./inv exec --lab zone rtsw1 ip route.
    ./inv exec 'rtsw*' ip route runs it in several nodes: each line of output begins with its node's name, the highest
    exit code counts, and there is no terminal.
    """
    from heddle.cli.exec_verb import run_inside

    run_inside(out, lab, node, cmd)


from heddle.cli.launch_verb import launch as launch  # noqa: E402, PLC0414 - at its place in the list of verbs


@verb(
    help=words.CAPTURE,
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
    --read FILE dissects a pcap or pcapng file from anywhere: it checks every ICRC, and lists queue pairs with PSNs,
    gaps, retransmissions, marks, NAKs and CNPs, pauses, and what is not RoCEv2. It needs no lab and no root.
    """
    from heddle.cli.capture_verb import bounds_of, needs_port, run_capture

    if read is not None:
        from heddle.cli.capture_read import check_alone, read_capture

        filtered = f"--filter {filter_}" if filter_ != "all" else ""
        check_alone({str(port): port, "--live": live, f"--out {out_}": out_, f"--lab {lab}": lab, filtered: filtered})
        return read_capture(out, read, count)
    return run_capture(out, lab, needs_port(port), bounds_of(count, seconds, out_), filter_, out_, live=live)


from heddle.cli.run_verb import run as run  # noqa: E402, PLC0414 - at its place in the list of verbs


@verb(
    help=words.HASHING,
    positional=["mode"],
    root=True,
    files_in=["table"],
)
def hashing(
    out: Console,
    mode: str | None = None,
    switch: Sequence[str] = (),
    set_: Sequence[str] = (),
    table: str | None = None,
    entry: Sequence[str] = (),
    clear: bool = False,
    explain: str | None = None,
    run: str | None = None,
    lab: str | None = None,
) -> None:
    """Show how every switch chooses among equal-cost paths; with a mode, change it while the lab runs, without loss.

    ./inv hashing flowlet --set gap=20ms --switch rtsw1,rtsw2. Other options stay as in the fabric file; docs/hashing.md
    explains the modes. ./inv hashing exact-match --table te.csv replaces the tables of the switches in the file.
    ./inv hashing --explain host1,host5,qpn=0x101,sport=50000 shows each step for a flow; exit 1 when a kernel differs.

    Columns: policy is the kernel's fib_multipath_hash_policy; options has those that differ from the default; exact is
    the number of rows of the exact-match table. The others count packets since the lab came up: steered (the program
    chose the port), fell back (left to the kernel's ECMP), misses (no row, or no space for the flowlet); re-picks: new
    flowlets after a gap.
    """
    from heddle.cli.hashing_verb import HashingWords, explain_flow, run_hashing

    asked = HashingWords(mode, switch, set_, table, entry, clear, run)
    if explain is not None:
        return explain_flow(out, lab, explain, asked)
    return run_hashing(out, lab, asked)


@verb(
    help=words.PATHS,
    extras=lambda typed: [PLOT] if typed["heatmap"] else [],
    root=lambda typed: typed["predict"] is None,
    files_in=_files_of_paths,
    files_out=["csv", "heatmap"],
)
def paths(
    out: Console,
    lab: str | None = None,
    run: str | None = None,
    now: bool = False,
    all_: bool = False,
    qp: Sequence[str] = (),
    host: Sequence[str] = (),
    port: Sequence[str] = (),
    predict: str | None = None,
    plan: str | None = None,
    set_: Sequence[str] = (),
    mode: str | None = None,
    trials: int = 0,
    down: Sequence[str] = (),
    drain: Sequence[str] = (),
    csv: str | None = None,
    heatmap: str | None = None,
) -> None:
    """Show the path of every QP of a run: predicted, kernel lookup, measured. Exit 1 when they differ.

    The run is the last one, or --run ID (./inv runs lists them). With --now: the paths that its QPs would take now, and
    how many of them have moved since the run.
    16 QPs are shown; --all shows all, and --qp, --host and --port select some. The exit code is for all QPs.
    With --predict FABRIC --plan PLAN nothing runs and no root is needed: it predicts the load of every link, for any
    fabric file and any traffic, and compares the hashing modes (docs/prediction.md). Exit 1 when a flow has no path.
    """
    from heddle.cli.paths_predict import predict_paths, wants_prediction
    from heddle.cli.paths_verb import Shown, paths_now, paths_of_run

    asked: dict[str, Any] = {
        "predict": predict, "plan": plan, "set_": set_, "mode": mode, "trials": trials,
        "down": down, "drain": drain, "csv": csv, "heatmap": heatmap,
    }  # fmt: skip
    shown = Shown(all_, qp, host, port)
    if wants_prediction(asked, {"--lab": lab, "--run": run, "--now": now}, shown.flags()):
        return predict_paths(out, **asked)
    return paths_now(out, lab, run, shown) if now else paths_of_run(out, lab, run, shown)


@verb(help={"lab": words.LAB}, positional=["lab"], root=True)
def validate(out: Console, lab: str | None = None) -> None:
    """Check a running lab: links, queues, programs, routes, paths and more; exit 1 when a check fails."""
    from heddle.checks.validate import validate as check
    from heddle.lab.opening import open_lab
    from heddle.views import labtext as views

    where = open_lab(lab)
    checks = check(where)
    ok = all(each.ok for each in checks)
    out.result({"ok": ok, "lab": where.name, "checks": [c.to_json() for c in checks]}, views.checks_text(checks))
    out.exit_code = 0 if ok else 1


@verb(
    help={
        "fabric": words.FABRIC,
        "out": "directory to write",
        "name": "override the lab name",
        "set": words.SET,
        "dialect": words.DIALECT,
        "mgmt": words.MGMT,
    },
    files_in=["fabric"],
    files_out=["out_"],
    directory_out=True,
)
def render(
    out: Console,
    fabric: str,
    out_: str = "out",
    name: str | None = None,
    set_: Sequence[str] = (),
    dialect: str | None = None,
    mgmt: str = "own",
) -> None:
    """Write a fabric's containerlab topology and FRR configuration; start nothing."""
    from pathlib import Path

    from heddle.base.files import real
    from heddle.fabric.fabricfile import load_fabric
    from heddle.host.engine.binary import installed_version
    from heddle.render.dialects import render_options
    from heddle.render.render import render as write

    options = render_options(dialect, mgmt, version=installed_version())
    written = write(load_fabric(fabric, name=name, overrides=set_).fabric, real(out_), options)
    topology = Path(out_) / written.name
    done = {"topology": str(topology), "dialect": options.dialect}
    out.result(done, f"wrote {topology}, with the files that it binds beside it")


@verb(
    help={
        "lab": words.LAB + "; the picture shows one of its runs",
        "run": words.RUN_ID,
        "fabric": "draw this fabric instead of a running lab",
        "set": words.SET + " (with --fabric)",
        "kind": "svg, png, pdf; by containerlab: mermaid, dot, drawio (default: by the suffix of --out, else svg)",
        "out": "file to write (default: LAB.svg; text kinds go to stdout)",
    },
    positional=["lab"],
    extras=lambda typed: [PLOT] if _is_picture(typed) else [],
    root=lambda typed: typed["fabric"] is None or not _is_picture(typed),
    files_in=["fabric"],
    files_out=["out_"],
    endings_here=[".svg", ".png", ".pdf"],
)
def graph(
    out: Console,
    lab: str | None = None,
    run: str | None = None,
    fabric: str | None = None,
    set_: Sequence[str] = (),
    kind: str | None = None,
    out_: str | None = None,
) -> None:
    """Draw a lab or a fabric: tiers in rows, and the load of each link in a run (the last, or --run ID)."""
    from heddle.cli.graph_verb import GraphSubject, draw_graph

    draw_graph(out, GraphSubject(lab, run, fabric, set_), kind, out_)


@verb(
    help={"lab": words.LAB, "all": "take all labs down"},
    positional=["lab"],
    root=True,
    lasting=True,
)
def down(out: Console, lab: str | None = None, all_: bool = False) -> None:
    """Take a lab down: remove its namespaces, processes, BPF pins and files, and nothing of other labs.

    Its runs are removed too: to keep some, first copy them from the lab's directory (docs/runs.md). It is not an
    error when there is no such lab.
    """
    from heddle.cli.down_verb import take_down

    take_down(out, lab, everything=all_)


# In the order of the list of verbs.
from heddle.cli.dashboard_verb import dashboard  # noqa: E402, F401
from heddle.cli.fault_verb import fault  # noqa: E402, F401
from heddle.cli.plot_verb import plot  # noqa: E402, F401
from heddle.cli.queues_verb import queues  # noqa: E402, F401
from heddle.cli.report_verb import compare, report  # noqa: E402, F401
from heddle.cli.runs_verb import runs  # noqa: E402, F401

# isort: split
from heddle.cli.mcp_verb import mcp  # noqa: E402, F401

# isort: split
from heddle.cli.explain_verb import explain as explain  # noqa: E402, PLC0414

# isort: split
from heddle.cli.lab_verb import lab_units  # noqa: E402, F401

# isort: split
from heddle.cli.image_verb import image  # noqa: E402, F401
from heddle.cli.setup_verb import setup  # noqa: E402, F401
from heddle.cli.test_verb import test  # noqa: E402, F401
from heddle.cli.vm_verb import vm  # noqa: E402, F401

# isort: split
from heddle.cli.replay_verb import replay  # noqa: E402, F401

# isort: split
from heddle.cli.bench_verb import bench  # noqa: E402, F401
from heddle.cli.lint_verb import lint  # noqa: E402, F401

typed = typed_to_invoke()
if typed is not None:  # `invoke up tiny`, `inv up tiny`: the words after the verb mean the same as after ./inv
    sys.argv[1:] = typed
if __name__ == "__main__" or typed is not None:
    sys.exit(main(globals()))
