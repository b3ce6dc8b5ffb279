"""Sections of how a run was made: every parameter and version, and the commands that make it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from heddle.base.tables import Table, flat, value_text
from heddle.base.units import emulated_words, format_bytes
from heddle.endpoints.runoptions import option_fields, plain, typed_options
from heddle.fabric.policydata import dump_policy
from heddle.traffic.options import RunOptions
from heddle.traffic.readers import parse_sizes
from heddle.views.report.section import Values

if TYPE_CHECKING:
    from heddle.runs.runtable import RunHead
    from heddle.runs.stored import StoredRun


def parameters(run: StoredRun) -> Values:
    """Tables of all of them."""
    header, outcome, around = run.record.header, run.record.outcome, run.surroundings.value
    words = {each.name: each.word for each in option_fields()}
    chosen = {"launch": shlex.join(header.launch)} if header.launch else plain(header.options)
    options = [(words.get(name, name), value_text(value)) for name, value in chosen.items()]
    tables = [
        _run_table(run),
        Table("Options of the run", ("option", "value"), tuple(options)),
    ]
    if outcome is not None and outcome.transport.parameters:
        rows = tuple((name, value_text(value)) for name, value in outcome.transport.parameters.items())
        tables.append(Table(f"Transport {outcome.transport.name}", ("parameter", "value"), rows))
    if outcome is not None:
        tables += [found for part in outcome.parts.values() if (found := part.table()) is not None]
    if (built := run.fabric.value) is not None:
        rows = tuple((name, value_text(value)) for name, value in flat(dump_policy(built.policy)).items())
        note = "sizes in bytes, durations in nanoseconds, rates are those of the fabric file"
        tables.append(Table("Policy of the fabric", ("key", "value"), rows, note))
    if around is not None and around.queues:
        heads = ("key", "value", "nodes")
        tables.append(Table("Queues that were set while the lab ran", heads, _live_rows(around.queues)))
    if around is not None:
        machine = {
            "processors": f"{around.processors} x {around.processor}", "memory": format_bytes(around.memory),
            "runtime": around.runtime, "prediction": around.selftest.text(),
        }  # fmt: skip
        tables.append(Table("Versions and machine", ("what", "value"), (*around.versions.items(), *machine.items())))
    why = "" if around is not None else f"Versions and machine: {run.surroundings.why}."
    return {"tables": tables, "without": why}


def _live_rows(live: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    """Key, value and nodes."""
    found: dict[tuple[str, str], list[str]] = {}
    for node, settings in live.items():
        for path, value in settings.items():
            found.setdefault((f"queues.{path}", value_text(value)), []).append(node)
    return tuple((path, value, ", ".join(nodes)) for (path, value), nodes in found.items())


def _run_table(run: StoredRun) -> Table:
    header = run.record.header
    rows = (
        ("run", f"{run.id} of lab {header.lab}"),
        ("made from", header.fabric),
        ("started (UTC)", header.when),
        ("wall time", f"{run.record.seconds:g} s"),
        ("k", f"{header.k}: {emulated_words(header.k)}"),
        ("hashing", header.ecmp),
        ("ranks", ", ".join(f"{rank.host}:{rank.port}" for rank in header.ranks)),
        ("flows" if header.launch else "queue pairs", f"{header.qps:,}"),
        ("Heddle", run.record.heddle),
    )
    return Table("The run", ("what", "value"), rows)


def reproduce(run: StoredRun) -> Values:
    """The commands, and the fabric file where the run carries it."""
    header, around = run.record.header, run.surroundings.value
    spec = around.spec if around is not None else {}
    file = f"{header.lab}.yml" if spec else header.fabric
    live = []
    if around is not None:
        live += _hashing(around.hashing, around.fabric.policy.routing.hash.to_json())
        live += _queues(around.queues, len(around.fabric.nodes))
    lines = [f"./inv up {shlex.quote(file)}", *live, *_commands(header), "./inv paths"]
    import yaml

    text = yaml.safe_dump(dict(spec), sort_keys=False, default_flow_style=None, width=100) if spec else ""
    note = "" if around is not None else f"The fabric file is not here: {run.surroundings.why}."
    return {"commands": "\n".join(lines), "file": file if spec else "", "yaml": text, "note": note}


def _commands(header: RunHead) -> list[str]:
    if header.launch:
        return [shlex.join(["./inv", "launch", "--lab", header.lab, *header.launch])]
    return run_commands(header.options, header.lab)


def _hashing(live: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """A command for each mode that was set while the lab ran. usual: options of the fabric file."""
    modes: dict[str, list[str]] = {}
    options: dict[str, Any] = {}
    for switch, rule in live.items():
        mode = str(rule.get("mode", ""))
        modes.setdefault(mode, []).append(switch)
        options[mode] = rule.get("options")
    lines = []
    for mode, switches in modes.items():
        lines.append(f"./inv hashing {shlex.quote(mode)} --switch {','.join(switches)}")
        own = {path: value for path, value in flat(options[mode] or {}).items() if flat(usual).get(path) != value}
        if own:
            lines.append(f"# with options (--set): {value_text(own)}")
    return lines


def _queues(live: Mapping[str, Mapping[str, Any]], every: int) -> list[str]:
    """A command for each set of thresholds that nodes were given while the lab ran. every: how many nodes there are."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for node, settings in live.items():
        words = tuple(shlex.quote(f"{path}={_plain(value)}") for path, value in settings.items())
        groups.setdefault(words, []).append(node)
    return [
        " ".join(["./inv queues set", *words, *([] if len(nodes) == every else [f"--switch {','.join(nodes)}"])])
        for words, nodes in groups.items()
        if words
    ]


def _plain(value: Any) -> str:
    """A value as --set and `queues set` read it."""
    return json.dumps(value) if isinstance(value, bool | list | None) else str(value)


def run_commands(options: RunOptions, lab: str) -> list[str]:
    """`./inv run` with every option that is not the default; once for each size where no range has exactly these."""
    if options.steps:
        return [f"# its steps are in a workload file: ./inv run --lab {shlex.quote(lab)} --workload FILE"]
    if (sizes := _range_of(options.sizes)) is not None:
        return [_run_command(options, lab, sizes)]
    return [_run_command(options, lab, str(size)) for size in options.sizes]


def _run_command(options: RunOptions, lab: str, sizes: str) -> str:
    words = ["./inv", "run", "--lab", lab]
    for word, texts in typed_options(options).items():
        for text in [sizes] if word == "size" else texts:
            words += [f"--{word.replace('_', '-')}", text]
    return shlex.join(words)


def _range_of(sizes: Sequence[int]) -> str | None:
    """`65536:1048576:x2` for these sizes; None where no such range has them."""
    if len(sizes) == 1:
        return str(sizes[0])
    ends = f"{sizes[0]}:{sizes[-1]}"
    steps = (f"x{sizes[1] // max(1, sizes[0])}", str(sizes[1] - sizes[0]))
    for step in steps:
        with suppress(ValueError):
            if parse_sizes(f"{ends}:{step}") == tuple(sizes):
                return f"{ends}:{step}"
    return None
