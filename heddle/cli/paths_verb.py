"""The verb `paths`: the paths of a run, those that its QPs would take now, or predicted loads of any fabric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heddle.base.extras import PLOT
from heddle.base.files import real
from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.cli import helptexts as words
from heddle.cli.argv import Tool
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.forecast.result import Prediction
    from heddle.proof.selection import QpSelection

# Parameters that are for a prediction only.
PREDICTIVE: Final = ("plan", "set_", "mode", "trials", "down", "drain", "csv", "heatmap")
MOST_TRIALS: Final = 1000


def files_in(typed: Mapping[str, Any]) -> Sequence[str]:
    """The files of the fabric, the plan and its matrix."""
    if typed["predict"] is None:
        return []
    from heddle.forecast.planfile import files_of

    return [typed["predict"], *files_of(typed["plan"])]


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


@verb(
    help=words.PATHS,
    extras=lambda typed: [PLOT] if typed["heatmap"] else [],
    root=lambda typed: typed["predict"] is None,
    files_in=files_in,
    files_out=["csv", "heatmap"],
    tool=Tool(
        "Show the path of each QP of a run from three sources (prediction, kernels, counters), the use of the links, "
        "MMR. In a large run, choose QPs by qp, host or port.",
        runs=("run",),
        without=("all", "predict", "plan", "set", "mode", "trials", "down", "drain"),
    ),
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
    asked: dict[str, Any] = {
        "predict": predict, "plan": plan, "set_": set_, "mode": mode, "trials": trials,
        "down": down, "drain": drain, "csv": csv, "heatmap": heatmap,
    }  # fmt: skip
    shown = Shown(all_, qp, host, port)
    if wants_prediction(asked, {"--lab": lab, "--run": run, "--now": now}, shown.flags()):
        return predict_paths(out, **asked)
    return show_paths(out, lab, run, shown, now=now)


def show_paths(out: Console, lab: str | None, run: str | None, shown: Shown, *, now: bool) -> None:
    """`./inv paths`, of the run or now. Exit 1 when the sources differ for any QP, shown or not.

    now: the sources are prediction and oracle, and a QP that would not reach its destination is exit code 1, too.
    """
    from heddle.lab.opening import open_lab
    from heddle.runs import moved
    from heddle.runs.store import load
    from heddle.views.linkloads import describe_run
    from heddle.views.pathstext import now_text, paths_text

    where = open_lab(lab)
    chosen = shown.selection(where.fabric)
    stored = load(where, run)
    if now:
        found = moved.now(where, stored)
        result, data, text = found.result, found.to_json(), now_text(found, chosen, **shown.rows)
    else:
        result = stored.needed(stored.proof)
        data, text = result.to_json(), paths_text(result, chosen, **shown.rows)
    which = f"run {stored.id}: {describe_run(stored.record.header)}"
    flows = [row for row, wanted in zip(data["flows"], chosen.mask(result), strict=True) if wanted]
    count = {"flows": len(flows), "of": len(data["flows"])}
    document = {"run_id": stored.id, **data, "flows": flows, "shown": count, "filter": chosen.to_json()}
    out.result(document, f"{text}\n\n{which}")
    out.exit_code = 0 if result.agree else 1


def wants_prediction(
    typed: Mapping[str, Any], live: Mapping[str, str | bool | None], rows: Mapping[str, bool] | None = None
) -> bool:
    """Whether the user requests a prediction. InputError when flags of a running lab (live) or flags that choose QPs
    of a run (rows) are combined with those of a prediction.
    """
    if typed["predict"] is not None:
        hints = {flag: "remove it: a prediction uses no lab and no run" for flag, value in live.items() if value}
        hints |= {
            flag: "remove it: a prediction lists links; --csv FILE writes all"
            for flag, on in (rows or {}).items()
            if on
        }
        if hints:
            raise InputError(*(Problem("", f"--predict and {f}", "exclude each other", h) for f, h in hints.items()))
        return True
    problems = Problems()
    for name in PREDICTIVE:
        if typed[name]:
            problems.add(
                where="", what=f"--{name.rstrip('_')}", why="is for predictions only", hint="add --predict FABRIC"
            )
    problems.raise_if_any()
    return False


def predict_paths(
    out: Console, *, predict: str, plan: str | None, set_: Sequence[str], mode: str | None, trials: int,
    down: Sequence[str], drain: Sequence[str], csv: str | None, heatmap: str | None,
) -> None:  # fmt: skip
    """Predict, and write the requested files."""
    from heddle.fabric.fabricfile import load_fabric
    from heddle.forecast.forecast import Ask, forecast
    from heddle.forecast.planfile import load_plan
    from heddle.predict.selftest import verdict
    from heddle.views.style import picture_kind

    ask = Ask(_mode(mode), _trials(trials), _words("--down", down), _words("--drain", drain))
    kind = picture_kind("--heatmap", heatmap) if heatmap is not None else None
    _check_files(csv, heatmap, files_in({"predict": predict, "plan": plan}))
    fabric = load_fabric(predict, overrides=set_).fabric
    if plan is None:
        hint = "add --plan with a file, or a word: ring, all-to-all, permutation, shift:4, incast:8"
        raise InputError(Problem("", "--predict", "needs a traffic plan", hint))
    result = forecast(fabric, load_plan(plan), ask, out.observer, verdict())
    written = _write(result, csv, heatmap, kind)
    from heddle.views.forecasttext import render

    text = "\n\n".join([render(result), *(["\n".join(f"wrote {name}" for name in written)] if written else [])])
    out.result({**(result.to_json() if out.json else {}), "csv": csv, "heatmap": heatmap}, text)
    out.exit_code = 1 if result.unreachable else 0


def _check_files(csv: str | None, heatmap: str | None, read: Sequence[str]) -> None:
    """InputError, before the prediction, for an output file that cannot be written, or that would overwrite an input
    file or the other output file.
    """
    from heddle.views.graph import check_target

    taken = {real(name).resolve(): "is an input file of the prediction" for name in read}
    for flag, name in (("--csv", csv), ("--heatmap", heatmap)):
        if name is None:
            continue
        if real(name).resolve() in taken:
            raise InputError(Problem("", f"{flag} {name}", taken[real(name).resolve()], "use another file name"))
        check_target(real(name), name, flag)
        taken[real(name).resolve()] = f"is also the file of {flag}"


def _write(result: Prediction, csv: str | None, heatmap: str | None, kind: Any) -> list[str]:
    from heddle.views.graph import write_file

    if csv is not None:
        write_file(real(csv), result.csv().encode(), csv, flag="--csv")
    if heatmap is not None:
        from heddle.views.heatmap import draw

        write_file(real(heatmap), draw(kind, result), heatmap, flag="--heatmap")
    return [name for name in (csv, heatmap) if name is not None]


def _words(flag: str, typed: Sequence[str]) -> tuple[str, ...]:
    """The words of a flag that was repeated, or that has several words with commas."""
    from heddle.fabric.naming import split_words

    found = split_words(typed)
    if typed and not found:
        hint = f"for example {flag} {words.EXAMPLE_SWITCH}"
        raise InputError(Problem("", f"{flag} {typed[0]}", "names nothing", hint))
    return found


def _mode(typed: str | None) -> str | None:
    from heddle.forecast.wires import mode_words

    if typed is not None and typed not in mode_words():
        raise InputError(Problem("", f"--mode {typed}", "is not a hashing mode", did_you_mean(typed, mode_words())))
    return typed


def _trials(typed: int) -> int:
    if not 0 <= typed <= MOST_TRIALS:
        raise InputError(Problem("", f"--trials {typed}", f"is outside 0 to {MOST_TRIALS}"))
    return typed
