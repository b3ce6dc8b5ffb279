"""The table of docs/sigcomm24.md: claims of the experiment files, values of docs/results/sigcomm24.csv.

`python -m tests.golden.experiments.reproducedpage DIR` collects that file from the output of `reproduce sigcomm24`.
Then `./inv docs --write` writes the page.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from heddle_plugins.experiments.experimenttext import break_text, claim_text, number
from heddle_plugins.experiments.folders import load_folder
from heddle_plugins.experiments.loading import Experiment, ExperimentCheck

ROOT: Final = Path(__file__).resolve().parents[3]
RESULTS: Final = ROOT / "docs/results/sigcomm24.csv"
HEAD: Final = ("check", "published", "both sides; the band", "claimed", "measured", "state", "it fails with")
PREDICTION: Final = "the prediction"  # `published` of a check that compares live runs with their prediction
STATES: Final = ("in band", "sign only", "out of band", "not known", "wrong data", "not measured")

Rows = Mapping[tuple[str, str], Mapping[str, str]]


@cache
def experiments() -> tuple[Experiment, ...]:
    """The experiment files, in order."""
    return load_folder("sigcomm24").experiments


def results() -> dict[tuple[str, str], dict[str, str]]:
    """(experiment, check) -> columns of the committed results."""
    with RESULTS.open(encoding="utf-8") as file:
        return {(row["experiment"], row["check"]): row for row in csv.DictReader(file)}


def page(rows: Rows) -> str:
    """The table, and how many claims have each state."""
    return f"{table(rows)}\n{counts(rows)}".rstrip()


def counts(rows: Rows) -> str:
    """How many claims have each state; comparisons of live runs with their prediction are no claims of the paper."""
    own, published = Counter[str](), Counter[str]()
    for each in experiments():
        for check in each.checks:
            state = rows.get((each.name, check.name), {}).get("state", "not measured")
            (own if check.spec.published == PREDICTION else published)[state] += 1
    shown = published.pop("shown", 0)
    text = ", ".join(f"{published[state]} {state}" for state in STATES if published[state])
    agree = ", ".join(f"{own[state]} {state}" for state in STATES if own[state])
    return (
        f"{published.total()} claims: {text}. Besides, {shown} values are shown.\n"
        f"{own.total()} rows compare live runs with their prediction: {agree}.\n"
    )


def table(rows: Rows) -> str:
    """A line for each experiment, and below it one for each of its checks."""
    lines = [_line(HEAD), _line(["---"] * len(HEAD))]
    for each in experiments():
        lines += [_line([f"**{int(each.name[:2])}**", _source(each), *[""] * (len(HEAD) - 2)])]
        lines += [_line(_cells(check, rows.get((each.name, check.name), {}))) for check in each.checks]
    return "".join(lines)


def _cells(check: ExperimentCheck, row: Mapping[str, str]) -> Iterator[str]:
    spec, state = check.spec, row.get("state", "not measured")
    yield check.name
    yield (
        "-" if spec.published is None else spec.published if isinstance(spec.published, str) else f"{spec.published:g}"
    )
    yield " ".join(spec.about.split()) or "-"
    yield claim_text(check)
    yield _measured(row, spec.unit, "" if spec.draws is None else " seeds")
    word = ": ".join(filter(None, [f"**{state}**" if state == "out of band" else state, row.get("not_known", "")]))
    yield f"{word}, UNRELIABLE" if row.get("unreliable") else word
    yield break_text(check)


def _measured(row: Mapping[str, str], unit: str, of: str) -> str:
    """`1.231 ± 0.004 x (3)`: mean, half of the 95 % interval, repeats or, with `of`, draws."""
    if not row.get("mean"):
        return "-"
    half = f" ± {float(row['half_interval']):.2g}" if float(row["half_interval"] or 0) else ""
    return f"{number(float(row['mean']))}{half} {unit}".strip() + f" ({row['repeats']}{of})"


def _source(experiment: Experiment) -> str:
    claim = experiment.spec.claim
    return "" if claim is None else f"{claim.text}. {claim.source[:1].upper()}{claim.source[1:]}"


def _line(cells: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def collected(directory: Path) -> str:
    """The tables of checks of all experiments as one; all have the same columns, since no check has a grid."""
    texts = [(directory / f"{each.name}.csv").read_text() for each in experiments()]
    heads = {text.split("\n", 1)[0] for text in texts}
    if len(heads) != 1:
        raise ValueError(f"columns differ: {heads}")
    return "".join([*heads, "\n", *(text.split("\n", 1)[1] for text in texts)])


if __name__ == "__main__":
    RESULTS.write_text(collected(Path(sys.argv[1])), encoding="utf-8")
