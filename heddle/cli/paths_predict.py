"""`./inv paths --predict`: its flags, its tables and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base.files import real
from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.cli.console import Console
from heddle.cli.helptexts import EXAMPLE_SWITCH

if TYPE_CHECKING:
    from heddle.forecast.result import Prediction

# Flags of `paths` that are for a prediction only: parameter -> flag.
FLAGS: Final[Mapping[str, str]] = {
    "plan": "--plan", "set_": "--set", "mode": "--mode", "trials": "--trials", "down": "--down", "drain": "--drain",
    "csv": "--csv", "heatmap": "--heatmap",
}  # fmt: skip
MOST_TRIALS: Final = 1000


def files_in(typed: Mapping[str, Any]) -> Sequence[str]:
    """The files of the fabric, the plan and its matrix."""
    if typed["predict"] is None:
        return []
    from heddle.forecast.planfile import files_of

    return [typed["predict"], *files_of(typed["plan"])]


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
    for name, flag in FLAGS.items():
        if typed[name]:
            problems.add(where="", what=flag, why="is for predictions only", hint="add --predict FABRIC")
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
    if typed and not any(word.strip() for each in typed for word in each.split(",")):
        raise InputError(Problem("", f"{flag} {typed[0]}", "names nothing", f"for example {flag} {EXAMPLE_SWITCH}"))
    return tuple(dict.fromkeys(word.strip() for each in typed for word in each.split(",") if word.strip()))


def _mode(typed: str | None) -> str | None:
    from heddle.forecast.modes import mode_words

    if typed is not None and typed not in mode_words():
        raise InputError(Problem("", f"--mode {typed}", "is not a hashing mode", did_you_mean(typed, mode_words())))
    return typed


def _trials(typed: int) -> int:
    if not 0 <= typed <= MOST_TRIALS:
        raise InputError(Problem("", f"--trials {typed}", f"is outside 0 to {MOST_TRIALS}"))
    return typed
