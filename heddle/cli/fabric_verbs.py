"""The verbs for whole labs: up, status, inspect, validate, down; and render, which starts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.base import state
from heddle.base.extras import KUBERNETES
from heddle.base.files import real
from heddle.base.problems import HeddleError, InputError, Problem, did_you_mean
from heddle.cli import helptexts as words
from heddle.cli.argv import Tool
from heddle.cli.console import Console
from heddle.cli.helptexts import target_of
from heddle.cli.verbs import verb
from heddle.host import packages

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric


def _files(typed: Mapping[str, Any]) -> Sequence[str]:
    from heddle.lab.imported.choose import files_of

    return [*files_of(typed["fabric"]), *filter(None, [typed["pod"]])]


def _packages(typed: Mapping[str, Any]) -> Sequence[str]:
    """A fabric with `routing.control: static` needs no FRR."""
    needed = () if typed["dry_run"] else packages.for_runtime(typed["runtime"])
    if typed["fabric"] and any(part.name == "frr" for part in packages.missing(needed)):
        try:
            from heddle.fabric.fabricfile import load_fabric

            by_bgp = load_fabric(typed["fabric"], overrides=typed["set_"]).fabric.policy.routing.by_bgp
        except HeddleError:  # the verb itself reports it
            return needed
        except ImportError:  # before the Python packages are set up: a file cannot be read, but may say so
            file = Path(typed["fabric"])
            text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
            if any("static" in each for each in (*(typed["set_"] or ()), text)):
                raise
            return needed
        return needed if by_bgp else packages.LAB
    return needed


@verb(
    group="Lab",
    help=words.UP,
    packages=_packages,
    extras=lambda typed: [KUBERNETES] if typed["runtime"] == KUBERNETES and not typed["dry_run"] else [],
    root=lambda typed: not typed["dry_run"],
    positional=["fabric"],
    files_in=_files,
    lasting=True,
)
def up(
    out: Console,
    fabric: str | None = None,
    name: str | None = None,
    runtime: str = "netns",
    set_: Sequence[str] = (),
    dialect: str | None = None,
    mgmt: str = "own",
    shards: int | None = None,
    context: str | None = None,
    namespace: str | None = None,
    image: str | None = None,
    pull_secret: str | None = None,
    tunnel_port: int | None = None,
    pod: str | None = None,
    dry_run: bool = False,
    repair: bool = False,
    rollback: bool = False,
    timeout: float | None = None,
    profile: bool = False,
) -> None:
    """Bring up a fabric, or your own containerlab topology, and wait until all routes are in all kernels.

    If the lab is already running and has faults, they are reported with exit code 1. --repair repairs them: it sets
    links up that were not taken down on purpose, restarts dead daemons, and installs missing queues and BPF programs.
    It also undoes commands that were entered in FRR since the lab came up.
    If the lab is running with another fabric (netns), the difference is applied: racks, switches, rates, thresholds of
    queues. What stays loses no packet. --dry-run shows the plan, or what cannot be changed.
    ./inv up --repair needs no fabric: it repairs the only running lab, or --name LAB.
    --runtime kubernetes runs a fabric in pods, a shard in each, that tunnels join (docs/kubernetes.md). --dry-run shows
    how it would be cut, and its cost.
    """
    from heddle.host.engine.binary import installed_version
    from heddle.lab import lifecycle as lab
    from heddle.lab.imported.choose import blueprint_of
    from heddle.render.dialects import render_options
    from heddle.views import labtext as views

    if timeout is not None and timeout <= 0:
        hint = "use a positive number of seconds, for example --timeout 60"
        raise InputError(Problem("", f"--timeout {timeout:g}", "leaves no time to converge", hint))
    if repair and dry_run:
        hint = "./inv status LAB and ./inv validate show the faults"
        raise InputError(Problem("", "--repair and --dry-run", "exclude each other", hint))
    if repair and fabric is None:
        if set_:
            hint = "remove it, or name the fabric"
            raise InputError(Problem("", "--set", "cannot change a lab that is only repaired", hint))
        done = lab.repair_lab(name, out.observer, timeout)
        return out.result(views.up_json(done), views.up_text(done))
    options = render_options(dialect, mgmt, version=installed_version() if runtime == "containerlab" else None)
    made, source = blueprint_of(fabric, runtime, name=name, overrides=set_, dialect=dialect)
    target = target_of({
        "shards": shards, "context": context, "namespace": namespace, "image": image, "pull_secret": pull_secret,
        "tunnel_port": tunnel_port, "pod": pod,
    })  # fmt: skip
    if runtime == KUBERNETES:
        options = replace(options, target=target)
    elif target and not (dry_run and [*target] == ["shards"]):
        flag = f"--{next(iter(target)).replace('_', '-')}"
        hint = "write --runtime kubernetes, too; with --dry-run, --shards alone shows the cut and its cost"
        raise InputError(Problem("", flag, f"is not for --runtime {runtime}", hint))
    if dry_run and (shards is not None or runtime == KUBERNETES):
        return _cut(out, made.fabric, shards, local=runtime != KUBERNETES)
    if dry_run:
        if (lines := lab.planned(made)) is not None:
            return out.result({"lab": made.fabric.name, "changes": lines}, "\n".join(lines))
        from heddle.lab.upscript import script_of

        script = script_of(made, runtime, options)
        return out.result({"lab": made.fabric.name, "script": script}, script)
    done = lab.up(
        made, runtime=runtime, options=options, observer=out.observer, rollback=rollback, timeout=timeout,
        source=source, repair=repair, change=True,
    )  # fmt: skip
    data, text = views.up_json(done), views.up_text(done)
    if profile:
        data, text = data | {"profile": views.profile_json(done)}, f"{text}\n{views.profile_text(done)}"
    return out.result(data, text)


def _cut(out: Console, fabric: Fabric, count: int | None, *, local: bool) -> None:
    """Show a cut and its cost. count: of shards; None: the default. local: one shard is this machine's kernel."""
    from heddle.fabric.cutting import cut, fitting_cut
    from heddle.offline.sharding import local_forecast, sharding_forecast
    from heddle.views.labtext import cut_json, cut_text

    found = fitting_cut(fabric) if count is None else cut(fabric, count)
    make = local_forecast if local and len(found.shards) == 1 else sharding_forecast
    ahead = make(fabric, found)
    out.result(cut_json(fabric, found, ahead), cut_text(fabric, found, ahead))


@verb(
    group="Lab",
    help={"lab": "show this lab in detail"},
    positional=["lab"],
    root=True,
    tool=Tool("List all running labs, or show one in detail: convergence, BGP sessions, faults."),
)
def status(out: Console, lab: str | None = None) -> None:
    """Show running labs, or one in detail: whether it converged, and which BGP sessions are missing and why."""
    from heddle.lab.opening import other_labs
    from heddle.lab.status import status as read
    from heddle.views import labtext as views

    labs, others = read(lab), other_labs() if lab is None else []
    data: dict[str, Any] = {"labs": [each.to_json() for each in labs]}
    if others:
        data["others"] = [{"lab": each.lab, "user": each.user, "state": each.state} for each in others]
    text = views.status_text(labs, detail=lab is not None)
    out.result(data, "\n".join([text, *(f"lab {each.lab} {each.text()}" for each in others)]))


@verb(
    group="Lab",
    help=words.INSPECT,
    positional=["lab"],
    root=True,
    tool=Tool("Show nodes of a running lab: role, AS number, addresses, ports, peers."),
)
def inspect(out: Console, lab: str | None = None, node: Sequence[str] = ()) -> None:
    """Show the nodes of a running lab: role, AS number, addresses, ports and their peers.

    ./inv inspect zone --node host1 shows one node in detail: links, rates, MTU and BGP states. ./inv status shows
    whether the lab is converged.
    """
    from heddle.fabric.model import matching_names, split_words
    from heddle.lab.inventory import read_inventory
    from heddle.lab.opening import open_lab
    from heddle.views.labtext import lab_text, nodes_text

    if lab is not None and lab not in state.labs():
        _check_node(lab)
    where = open_lab(lab)
    wanted = split_words(node)
    names = [each.name for each in where.fabric.nodes]
    chosen = matching_names(wanted, names, f"is not a node of {where.name}", "--node") if wanted else None
    found = read_inventory(where, chosen)
    out.result(found.to_json(), lab_text(found) if chosen is None else nodes_text(found))


def _check_node(word: str) -> None:
    """InputError that names the flag when the word after `inspect` is a node of the only running lab."""
    from heddle.lab.opening import open_lab

    if len(state.labs()) == 1:
        where = open_lab()
        if word in where.fabric.by_name:
            hint = f"./inv inspect {where.name} --node {word} shows that node"
            raise InputError(Problem("", f"lab {word}", f"is not running: {word} is a node of {where.name}", hint))


@verb(
    group="Lab",
    positional=["lab"],
    root=True,
    tool=Tool("Run every check on a running lab. `ok` is false if one fails."),
)
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
    group="Lab",
    help=words.RENDER,
    files_in=["fabric", "pod"],
    files_out=["out_"],
    directory_out=True,
)
def render(
    out: Console,
    fabric: str,
    out_: str = "out",
    kind: str | None = None,
    name: str | None = None,
    set_: Sequence[str] = (),
    dialect: str | None = None,
    mgmt: str = "own",
    runtime: str | None = None,
    shards: int | None = None,
    namespace: str | None = None,
    image: str | None = None,
    pull_secret: str | None = None,
    pod: str | None = None,
) -> None:
    """Write a fabric's containerlab topology and FRR configuration; start nothing.

    --runtime kubernetes writes the manifests of its shards, too, into the directory kubernetes.
    --kind writes one file instead, with sizes, rates and delays as on hardware, for a simulator (docs/fabric-file.md).
    """
    from heddle.base.userfiles import write_texts
    from heddle.fabric.fabricfile import load_fabric
    from heddle.host.engine.binary import installed_version
    from heddle.render.dialects import render_options
    from heddle.render.render import TOPOLOGIES
    from heddle.render.render import render as write
    from heddle.runtimes.registry import get_runtime

    if runtime is not None:
        get_runtime(runtime)  # an unknown word is an error
    target = target_of({"namespace": namespace, "image": image, "pull_secret": pull_secret, "pod": pod})
    if runtime != KUBERNETES and (flags := [*(["shards"] if shards is not None else []), *target]):
        flag = f"--{flags[0].replace('_', '-')}"
        raise InputError(Problem("", flag, "is only for --runtime kubernetes", "write --runtime kubernetes, too"))
    if kind is not None:
        if kind not in TOPOLOGIES:
            raise InputError(Problem("", f"--kind {kind}", "is not a format", did_you_mean(kind, TOPOLOGIES)))
        if runtime or dialect or mgmt != "own":
            why, hint = "is a file of another tool, without switches' configuration", "remove the other flags"
            raise InputError(Problem("", f"--kind {kind}", why, hint))
        loaded = load_fabric(fabric, name=name, overrides=set_)
        if loaded.spec.frontend is not None:
            why = "is a file of one network, and the fabric has a front-end, too"
            raise InputError(Problem("", f"--kind {kind}", why, "add --set frontend=null"))
        file, text = TOPOLOGIES[kind](loaded)
        write_texts(real(out_), {file: text})
        return out.result({"kind": kind, "file": str(Path(out_) / file)}, f"wrote {Path(out_) / file}")
    options = render_options(dialect, mgmt, version=installed_version())
    made = load_fabric(fabric, name=name, overrides=set_).fabric
    manifests = _manifests(made, shards, target) if runtime == KUBERNETES else {}
    written = write(made, real(out_), options)
    topology = Path(out_) / written.name
    done = {"topology": str(topology), "dialect": options.dialect}
    text = f"wrote {topology}, with the files that it binds beside it"
    if manifests:
        write_texts(real(out_) / KUBERNETES, manifests)
        done["manifests"] = str(Path(out_) / KUBERNETES)
        text += f"; and {', '.join(manifests)} in {done['manifests']}"
    return out.result(done, text)


def _manifests(fabric: Fabric, count: int | None, given: Mapping[str, str]) -> Mapping[str, str]:
    from heddle.fabric.cutting import cut, fitting_cut
    from heddle.runtimes.clusterkind import CLUSTERS

    found = cut(fabric, count) if count is not None else fitting_cut(fabric)
    return CLUSTERS[KUBERNETES].manifests(fabric, found, given)


@verb(
    group="Lab",
    help=words.DOWN,
    extras=lambda typed: [KUBERNETES] if typed["runtime"] == KUBERNETES else [],
    positional=["lab"],
    root=True,
    lasting=True,
)
def down(
    out: Console,
    lab: str | None = None,
    all_: bool = False,
    force: bool = False,
    runtime: str | None = None,
    context: str | None = None,
    namespace: str | None = None,
) -> None:
    """Take a lab down: remove its namespaces, processes, BPF pins and files, and nothing of other labs.

    Its runs are removed too: to keep some, first copy them from the lab's directory (docs/runs.md). It is not an
    error when there is no such lab. A lab of another user or state directory is taken down after a question, or with
    --force; its runs stay there. What runs in a lab is not ended: wait for it, or end it first.
    A lab in pods is found by its record. If that is damaged or gone, --runtime kubernetes with --namespace and
    --context names its place.
    """
    from heddle.lab import lifecycle as labs
    from heddle.lab.opening import other_labs
    from heddle.views.labtext import down_text

    known = state.labs()
    if all_ and lab is not None:
        raise InputError(Problem("", f"{lab} and --all", "exclude each other", "name one lab, or use --all"))
    if lab is None and not all_ and len(known) > 1:
        hint = f"one of: {', '.join(known)}; or ./inv down --all"
        raise InputError(Problem("", "down", "needs a LAB, because several are running", hint))
    if all_ and force:
        hint = "name each lab of another user: ./inv down LAB --force"
        raise InputError(Problem("", "--all and --force", "exclude each other", hint))
    named = {key: value for key, value in (("context", context), ("namespace", namespace)) if value is not None}
    if (named or runtime) and (runtime != KUBERNETES or lab is None):
        what = " ".join(f"--{each}" for each in ("runtime" if runtime else "", *named) if each)
        hint = "write ./inv down LAB --runtime kubernetes; other labs are found by their names"
        raise InputError(Problem("", what, "is only for a lab in pods, which is named", hint))
    names, cluster = known if lab is None else [lab], named if runtime else None
    done = {name: labs.down(name, out.observer, force=force, ask=out.confirm, cluster=cluster) for name in names}
    removed = {name: each for name, each in done.items() if each}
    text = down_text(removed)
    if lab is not None and not removed:
        text = f"there is no lab {lab}" + (f"; running: {', '.join(known)}" if known else "")
    if all_:
        text = "\n".join([text, *(f"lab {each.lab} {each.text()}: it is left" for each in other_labs())])
    runs = {name: each.runs for name, each in removed.items() if each.runs}
    out.result({"down": list(removed), **({"runs": runs} if runs else {})}, text)
