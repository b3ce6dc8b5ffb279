"""What `run`, `perf` and `export` do with the figures of a run beside printing them: files, -I, and --min-busbw.

In:  typed values. Out: files, lines about them, and the sizes that are too slow; InputError before anything runs when a
file cannot be written.
As in nccl-tests, an existing file of --json stays: the next free name is taken, FILE.0, FILE.1 and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from heddle.base.files import is_file, real
from heddle.base.problems import InputError, Problem

if TYPE_CHECKING:
    from heddle.runs.exports.asked import Asked
    from heddle.runs.runtable import TableLook
    from heddle.runs.stored import StoredRun

FILES: Final = ("json", "csv", "inspector")  # of runs/exports/, as `run` writes them
STORED: Final = (*FILES, "perfetto", "otg")  # as `export` does
_ON: Final = (0, 1)


@dataclass(frozen=True)
class Outputs:
    """Files by their format, as typed; whether figures of iterations are printed; what is asked of the figures.

    plain: the table is printed without Heddle's own lines.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    per_iter: bool = False
    skip: int = 0
    min_busbw: float | None = None
    plain: bool = False

    @classmethod
    def of(
        cls,
        files: Mapping[str, str | None],
        min_busbw: float | None = None,
        per_iter_timing: int | None = None,
        per_iter_skip: int | None = None,
        iters: int | None = None,
    ) -> Outputs:
        """Check the values. iters: of the run, where it is known."""
        timing, skip = per_iter_timing or 0, per_iter_skip or 0
        if timing not in _ON:
            raise InputError(Problem("", f"-I {timing}", "is neither 0 nor 1", "write -I 1 to print these figures"))
        if skip < 0 or (iters is not None and skip >= iters):
            why = "leaves no iteration" if skip > 0 else "is below 0"
            raise InputError(Problem("", f"-K {skip}", why, "use a number below that of the iterations (-n)"))
        if min_busbw is not None and min_busbw <= 0:
            raise InputError(Problem("", f"--min-busbw {min_busbw:g}", "is not above 0", "write GB/s, emulated: 0.01"))
        return cls(_checked(files), bool(timing), skip, min_busbw)

    @property
    def announced(self) -> list[str]:
        """The line of nccl-tests about its JSON file."""
        return [f"# Writing JSON output to {self.files['json']}"] if "json" in self.files else []

    @property
    def look(self) -> TableLook:
        """For the table."""
        from heddle.runs.runtable import TableLook

        return TableLook(self.per_iter, self.skip, self.plain)

    @property
    def asked(self) -> Asked:
        """For the exports."""
        from heddle.runs.exports.asked import Asked

        return Asked(self.skip, self.min_busbw)

    def write(self, run: StoredRun) -> list[str]:
        """Write all files; the lines about those that were not announced."""
        from heddle.runs.exports import EXPORTS
        from heddle.views.graph import write_file

        for name, typed in self.files.items():
            write_file(real(typed), EXPORTS[name].written(run, self.asked), typed, f"--{name}")
        return [f"#wrote    : {typed}" for name, typed in self.files.items() if name != "json"]

    def one_job(self, jobs: int) -> None:
        """InputError for a workload of several jobs, when there are files to write."""
        if jobs > 1 and (self.files or self.min_busbw is not None):
            flag = f"--{next(iter(self.files), 'min-busbw')}"
            hint = "leave it out, and use ./inv export ID with it for each job: ./inv runs lists their IDs"
            raise InputError(Problem("", flag, f"is for one collective, and the workload has {jobs} jobs", hint))

    def to_json(self, below: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"files": dict(self.files)} if self.files else {}
        return found | ({} if self.min_busbw is None else {"min_busbw": self.min_busbw, "below": list(below)})


def _checked(files: Mapping[str, str | None]) -> dict[str, str]:
    """Those that were typed, each with the name to write to. InputError if one cannot be written, or is named twice."""
    from heddle.views.graph import check_target

    found: dict[str, str] = {}
    for name, typed in files.items():
        if typed is None:
            continue
        check_target(real(typed), typed, f"--{name}")
        if typed in found.values():
            raise InputError(Problem("", f"--{name} {typed}", "is named twice", "use another file name"))
        found[name] = _free(typed) if name == "json" else typed
    return found


def _free(typed: str) -> str:
    """The name itself, or the first of NAME.0, NAME.1 that is no file yet."""
    name = typed
    for number in count():
        if not is_file(real(name), name):
            break
        name = f"{typed}.{number}"
    return name
