"""The verbs `run` and `perf`: run a collective on a lab; with --fabric, on a lab that exists only for this run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from heddle.base.problems import InputError, MachineError, Problem, did_you_mean
from heddle.cli import helptexts
from heddle.cli.argv import Tool
from heddle.cli.console import Console
from heddle.cli.nccltests import NcclSizes
from heddle.cli.outputs import FILES, Outputs
from heddle.cli.verbs import verb
from heddle.host import packages

if TYPE_CHECKING:
    from heddle.base.declared import OptionField
    from heddle.fabric.model import Fabric
    from heddle.lab.lab import Lab
    from heddle.runs.runrecord import RunRecord
    from heddle.runs.runtable import SizeRow
    from heddle.traffic.workload import Workload


_CYCLES: Final = 50  # the time limit of a run is that of 50 cycles on idle links
_NOT_FOR_TOOLS: Final = (
    "fabric", "runtime", "set", "check", "minbytes", "maxbytes", "stepfactor", "stepbytes", "workload", "interference",
    "run_cycles", "min_busbw", "per_iter_timing", "per_iter_skip",
)  # fmt: skip


@contextmanager
def lab_for_run(
    out: Console,
    lab: str | None,
    fabric: str | None,
    overrides: Sequence[str],
    runtime: str | None,
    check: Callable[[Fabric], object],
) -> Iterator[Lab]:
    """The running lab; or, for `--fabric`, a lab that is brought up now and taken down at the end, also after an error.

    check: raises an error if the run cannot work on this fabric, before anything is brought up.
    """
    if fabric is None:
        for flag, given in (("--set", overrides), ("--runtime", runtime)):
            if given:
                hint = f"a running lab keeps its settings; use --fabric FABRIC, or ./inv up FABRIC {flag} ..."
                raise InputError(Problem("", flag, "needs --fabric", hint))
        from heddle.lab.opening import open_lab

        yield open_lab(lab)
        return
    if lab is not None:
        hint = "use --lab for a running lab, or --fabric to bring one up for this run"
        raise InputError(Problem("", "--lab and --fabric", "exclude each other", hint))
    from heddle.fabric.fabricfile import load_fabric
    from heddle.lab import lifecycle as labs

    loaded = load_fabric(fabric, overrides=overrides)
    check(loaded.fabric)
    done = labs.up(loaded, runtime=runtime or "netns", observer=out.observer, rollback=True, source=fabric)
    try:
        yield done.lab
    finally:
        if done.created:
            labs.down(done.lab.name, out.observer)


class LiveTable:
    """The table of a run on the terminal while it is measured: header first, then row by row, then the trailer.

    A narrow terminal gets rows of 80 columns. With `--format json` nothing is printed here. When stdout fails (closed
    by its reader, a full disk), the run continues and is kept; the error is raised at the end.
    """

    def __init__(self, out: Console, outputs: Outputs | None = None) -> None:
        self._out, self._outputs = out, outputs or Outputs()
        self._head: RunRecord | None = None
        self._narrow = False
        self._lost: BrokenPipeError | MachineError | None = None

    def head(self, head: RunRecord) -> None:
        """Print all lines up to the names of the columns."""
        self._head = head
        self._narrow = narrow_terminal()
        self._print(*self._outputs.announced, *head.lines(narrow=self._narrow, look=self._outputs.look))

    def row(self, row: SizeRow) -> None:
        """Print one line."""
        if self._head is not None:
            self._print(self._head.row(row, narrow=self._narrow, look=self._outputs.look))

    def end(self, result: RunRecord, more: Sequence[str] = ()) -> None:
        """Print the trailer, and more lines; with JSON the whole result. The exit code is 1 for wrong elements, and
        for sizes that are slower than the user asks for.
        """
        if self._lost is not None:
            raise self._lost
        below = self._outputs.asked.below(result.rows)
        lines = [*result.foot(plain=self._outputs.plain), *more, *(f"#below    : {each}" for each in below)]
        self._out.result({**result.to_json(), **self._outputs.to_json(below)}, "\n".join(lines))
        self._out.exit_code = 1 if result.wrong or below else 0

    def interrupted(self, records: Sequence[RunRecord], lasting: bool) -> None:
        """Print the trailer of a run that Ctrl-C ended; of a workload, the rows that each job has measured.

        lasting: the lab stays up, and the runs are kept in it.
        """
        if self._head is None:
            for each in records:
                rows = [each.row(row) for row in each.rows]
                kept = [f"#run      : {each.id}; ./inv runs lists the runs of {each.lab}"] if lasting else []
                self._out.part("\n".join([*each.lines(), *rows, *kept, f"#job      : {each.job}: {each.failure[0]}"]))
            return
        (record,) = records
        why = "; ".join(record.failure)
        kept = [f"#run      : {record.id}; ./inv runs lists the runs of {record.lab}"] if lasting else []
        self._print(self._head.emulated_line(), *kept, f"# Collective test {why}: {record.program}")

    def _print(self, *lines: str) -> None:
        if self._lost is None:
            try:
                self._out.part("\n".join(lines))
            except (BrokenPipeError, MachineError) as error:
                self._lost = error


def narrow_terminal() -> bool:
    """Whether stdout is a terminal that is too narrow for the whole table."""
    from heddle.runs.runtable import WIDE

    return sys.stdout.isatty() and shutil.get_terminal_size().columns < WIDE


def files_in(typed: Mapping[str, Any]) -> Sequence[str]:
    """The files of the fabric, of the matrix, of ranks and of the workload."""
    from heddle.endpoints.stepsfile import typed_files
    from heddle.endpoints.workloadfile import files_of

    return [*([typed["fabric"]] if typed["fabric"] else []), *typed_files(typed), *files_of(typed.get("workload"))]


def packages_of(typed: Mapping[str, Any]) -> Sequence[str]:
    """Those of the runtime; a running lab may be one of containers."""
    return packages.for_runtime((typed["runtime"] or "netns") if typed["fabric"] else "containerlab")


@verb(
    group="Traffic",
    help=helptexts.RUN,
    options="heddle.endpoints.runoptions:option_fields",
    packages=packages_of,
    root=True,
    files_in=files_in,
    files_out=FILES,
    tool=Tool(
        "Run one collective in a lab with real packets, and return nccl-tests' figures. Takes seconds to minutes.",
        without=_NOT_FOR_TOOLS,
        changes=True,
    ),
)
def run(
    out: Console,
    check: int | None = None,
    minbytes: str | None = None,
    maxbytes: str | None = None,
    stepfactor: int | None = None,
    stepbytes: str | None = None,
    run_cycles: int | None = None,
    lab: str | None = None,
    fabric: str | None = None,
    runtime: str | None = None,
    set_: Sequence[str] = (),
    workload: str | None = None,
    interference: bool = False,
    json: str | None = None,
    csv: str | None = None,
    inspector: str | None = None,
    min_busbw: float | None = None,
    per_iter_timing: int | None = None,
    per_iter_skip: int | None = None,
    **options: Any,
) -> None:
    """Run a collective with real data in real packets, and print the table of nccl-tests. Bandwidths are emulated.

    Each row is printed when its size is measured. Ctrl-C ends the run and keeps the measured rows (./inv runs lists it
    as partial); the previous run stays the last one for other verbs. Lines of nccl-tests can be pasted: its flags mean
    what they mean there, or have no effect (docs/formats.md).
    """
    wanted = _wanted(out, workload, NcclSizes(minbytes, maxbytes, stepfactor, stepbytes), check, options)
    if interference and len(wanted.jobs) < 2:
        raise InputError(Problem("", "--interference", "compares several jobs", "add --workload with a file of jobs"))
    files, iters = {"json": json, "csv": csv, "inspector": inspector}, wanted.jobs[0].options.iters
    outputs = Outputs.of(files, min_busbw, per_iter_timing, per_iter_skip, iters)
    outputs.one_job(len(wanted.jobs))
    _run(out, _repeated(wanted, run_cycles), _Where(lab, fabric, set_, runtime), outputs, interference)


def options_of_perf() -> list[OptionField]:
    """Those of `run`; the program's name says the collective."""
    from heddle.endpoints.runoptions import option_fields

    found = {each.word: each for each in option_fields() if each.word != "collective"}
    both = replace(found["in_place"], usual="both")  # nccl-tests measures a size in both ways
    return [*{**found, "in_place": both}.values()]


@verb(
    group="Traffic",
    help=helptexts.PERF,
    options="heddle.cli.run_verb:options_of_perf",
    packages=packages_of,
    root=True,
    files_in=files_in,
    files_out=FILES,
)
def perf(
    out: Console,
    program: str,
    check: int | None = None,
    minbytes: str | None = None,
    maxbytes: str | None = None,
    stepfactor: int | None = None,
    stepbytes: str | None = None,
    run_cycles: int | None = None,
    lab: str | None = None,
    fabric: str | None = None,
    runtime: str | None = None,
    set_: Sequence[str] = (),
    json: str | None = None,
    csv: str | None = None,
    inspector: str | None = None,
    min_busbw: float | None = None,
    per_iter_timing: int | None = None,
    per_iter_skip: int | None = None,
    **options: Any,
) -> None:
    """Run a program of nccl-tests by its name and with its flags: ./inv perf all_reduce -b 64K -e 16M -f 2.

    It measures each size out of place and in place, and prints the table without Heddle's own lines, except those that
    say what to trust. Other defaults are those that ./inv run has. Flags without a meaning here are accepted, with a
    note on stderr (docs/formats.md).
    """
    named = {"in_place": "both", **options, "collective": _collective_of(program)}
    wanted = _wanted(out, None, NcclSizes(minbytes, maxbytes, stepfactor, stepbytes), check, named)
    files, iters = {"json": json, "csv": csv, "inspector": inspector}, wanted.jobs[0].options.iters
    outputs = replace(Outputs.of(files, min_busbw, per_iter_timing, per_iter_skip, iters), plain=True)
    _run(out, _repeated(wanted, run_cycles), _Where(lab, fabric, set_, runtime), outputs)


def _repeated(wanted: Workload, cycles: int | None) -> Workload:
    """The workload with its sizes measured several times (`-N`), each time from a common start of all ranks."""
    if cycles is None:
        return wanted
    if not 1 <= cycles <= _CYCLES:
        hint = f"use 1 to {_CYCLES}, and -n for more iterations in each cycle"
        raise InputError(Problem("", f"-N {cycles}", f"is outside 1 to {_CYCLES}", hint))
    if wanted.name:
        hint = "write `repeat` in the jobs of the file"
        raise InputError(Problem("", f"-N {cycles}", "is not for a workload", hint))
    return replace(wanted, jobs=tuple(replace(job, repeat=cycles) for job in wanted.jobs))


def _collective_of(program: str) -> str:
    """`all-reduce` for all_reduce and all_reduce_perf. InputError for other names."""
    from heddle.runs.ncclnames import PROGRAMS
    from heddle.traffic.collectives import patterns

    known = {name: collective for name, collective in PROGRAMS.items() if any(collective == c for c, _ in patterns())}
    name = program.rpartition("/")[2].removesuffix("_perf")
    if name == "hypercube":
        why, hint = "is an all-gather along the edges of a hypercube, which Heddle does not have", "use all_gather"
        raise InputError(Problem("", f"./inv perf {program}", why, hint))
    if name in known.values():
        return name
    if name not in known:
        raise InputError(Problem("", f"./inv perf {program}", "is not a program here", did_you_mean(name, known)))
    return known[name]


@dataclass(frozen=True, slots=True)
class _Where:
    """The running lab, or the fabric to bring up."""

    lab: str | None
    fabric: str | None
    overrides: Sequence[str]
    runtime: str | None


def _run(out: Console, wanted: Workload, at: _Where, outputs: Outputs, interference: bool = False) -> None:
    """Run, print, and write the files."""
    from heddle.runs.run import plan_workload, run_with_interference, run_workload
    from heddle.runs.store import History
    from heddle.runs.writer import RunInterruptedError

    table, many = LiveTable(out, outputs), len(wanted.jobs) > 1
    live = None if out.json or many else table

    def possible(built: Fabric) -> object:
        return plan_workload(built, wanted)

    with lab_for_run(out, at.lab, at.fabric, at.overrides, at.runtime, check=possible) as where:
        try:
            if interference:
                done = run_with_interference(where, wanted, out.observer)
            else:
                done = run_workload(where, wanted, out.observer, live)
            more = outputs.write(History.of(where).open(done.jobs[0].id)) if outputs.files else []
        except RunInterruptedError as end:
            table.interrupted(end.records, lasting=at.fabric is None)
            raise
    if many:
        out.result(done.to_json(), done.table(narrow_terminal()).rstrip("\n"))
        out.exit_code = 1 if done.wrong else 0
    else:
        table.end(done.jobs[0], more)


def _wanted(
    out: Console, workload: str | None, sizes: NcclSizes, check: int | None, options: Mapping[str, Any]
) -> Workload:
    from heddle.endpoints.runoptions import run_options
    from heddle.traffic.workload import Workload

    if check is not None and check < 1:
        out.say(f"-c {check}: results are checked all the same, and the check is not part of the measured time")
    if workload is None:
        with sizes.named_in_problems():
            return Workload.of(run_options(**{**options, **({"size": sizes.size} if sizes.size else {})}))
    from heddle.endpoints.workloadfile import load_workload

    if more := sorted(options):
        word = more[0].replace("_", "-")
        hint = f"write it in the file, or behind its name: --workload {workload},{more[0]}=..."
        raise InputError(
            Problem("", f"--{word}", "is not for --workload, whose file has the options of its jobs", hint)
        )
    return load_workload(workload).workload
