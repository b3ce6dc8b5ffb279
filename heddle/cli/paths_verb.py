"""The verb `paths`: the paths of a run, or the paths that its QPs would take now. paths_predict.py has --predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.proof.selection import QpSelection
    from heddle.proof.verdict import PathsResult
    from heddle.runs.stored import StoredRun


@dataclass(frozen=True, slots=True)
class Shown:
    """The QPs to show, as typed: --all, and the words after --qp, --host, --port."""

    all: bool = False
    qp: Sequence[str] = ()
    host: Sequence[str] = ()
    port: Sequence[str] = ()

    def flags(self) -> dict[str, bool]:
        """Flag -> whether it was typed."""
        return {
            "--all": self.all, "--qp": bool(self.qp), "--host": bool(self.host), "--port": bool(self.port),
        }  # fmt: skip

    def selection(self, fabric: Fabric) -> QpSelection:
        """The selection. InputError for words that match nothing, and for --all with another flag."""
        from heddle.proof.selection import read_selection

        some = [flag for flag, typed in self.flags().items() if typed and flag != "--all"]
        if self.all and some:
            raise InputError(
                Problem("", f"--all and {some[0]}", "exclude each other", f"{some[0]} shows all that match")
            )
        return read_selection(fabric, self.qp, self.host, self.port)

    @property
    def rows(self) -> dict[str, None]:
        """The keyword argument for a view without a limit; empty for the default limit."""
        return {"rows": None} if self.all else {}


def paths_of_run(out: Console, lab: str | None, run: str | None, shown: Shown) -> None:
    """`./inv paths`. Exit 1 when the three sources differ for any QP, shown or not."""
    from heddle.lab.opening import open_lab
    from heddle.runs.lookup import load
    from heddle.views.pathstext import paths_text

    where = open_lab(lab)
    chosen = shown.selection(where.fabric)
    found = load(where, run)
    result = found.needed(found.proof)
    text = f"{paths_text(result, chosen, **shown.rows)}\n\n{_which(found)}"
    out.result(_document(result.to_json(), found, result, chosen), text)
    out.exit_code = 0 if result.agree else 1


def paths_now(out: Console, lab: str | None, run: str | None, shown: Shown) -> None:
    """`./inv paths --now`. Exit 1 when prediction and oracle differ, or a QP would not reach its destination."""
    from heddle.lab.opening import open_lab
    from heddle.runs.lookup import load
    from heddle.runs.moved import now
    from heddle.views.pathstext import now_text

    where = open_lab(lab)
    chosen = shown.selection(where.fabric)
    found = load(where, run)
    current = now(where, found)
    text = f"{now_text(current, chosen, **shown.rows)}\n\n{_which(found)}"
    out.result(_document(current.to_json(), found, current.result, chosen), text)
    out.exit_code = 0 if current.result.agree else 1


def _document(data: dict[str, Any], found: StoredRun, result: PathsResult, chosen: QpSelection) -> dict[str, Any]:
    """The JSON document with the run's ID, the filter, and the rows of `flows` that match it."""
    flows = [row for row, wanted in zip(data["flows"], chosen.mask(result), strict=True) if wanted]
    shown = {"flows": len(flows), "of": len(data["flows"])}
    return {"run_id": found.id, **data, "flows": flows, "shown": shown, "filter": chosen.to_json()}


def _which(found: StoredRun) -> str:
    """The run, on one line."""
    from heddle.views.usage import describe_run

    return f"run {found.id}: {describe_run(found.record.header)}"
