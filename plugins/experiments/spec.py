"""The keys of experiment files and of the index of a folder of them. Strict: an unknown key is an error with its line.

In:  YAML (spec/yamlfile.py). Out: ExperimentSpec, FolderSpec, frozen. loading.py checks what needs the fabric.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, model_validator

from heddle.base.conditions import LARGEST, SIGN, Condition
from heddle.base.tables import flat, value_text
from heddle.spec.keys import Strict, at, wrong

MOST_REPEATS: Final = 100
NAME: Final = re.compile("[A-Za-z][A-Za-z0-9_]{0,31}")  # of runs and checks; expressions use it, too


def _short(key: str) -> BeforeValidator:
    """A group that a file may write as one value, that of `key`."""
    return BeforeValidator(lambda value: value if isinstance(value, dict) or value is None else {key: value})


class ClaimSpec(Strict):
    """What was published. text: the statement; source: where it is, with section or page."""

    text: str = Field(examples=["16 queue pairs give up to 40 % more bandwidth"])
    source: str = Field(examples=["SIGCOMM 2024, section 4.2"])


class FabricUse(Strict):
    """A preset or a fabric file, with changed keys. A relative path is relative to the experiment file."""

    use: str = Field(examples=["tiny"])
    set: dict[str, Any] = Field(default={})


class HashingChange(Strict):
    """A live change of all switches, as `./inv hashing MODE --set seed=...` makes it."""

    mode: str = Field(examples=["e-ecmp"])
    seed: int | str | None = None


class RunSpec(Strict):
    """One run of an experiment: what it sends (one of run, workload, measure), and what differs from other runs.

    fabric: instead of the file's. set: changed keys of the fabric file, for which a lab is made. hashing, queues, down,
    drain, te: live changes of that lab, undone after the run. offline: predict instead of running; mode: another
    hashing mode of the prediction. options: of `measure`.
    """

    about: str = ""
    fabric: Annotated[FabricUse, _short("use")] | None = None
    set: dict[str, Any] = Field(default={})
    run: dict[str, Any] | None = None
    workload: str | list[str] | None = None
    measure: str | None = None
    options: dict[str, Any] = Field(default={})
    hashing: Annotated[HashingChange, _short("mode")] | None = None
    queues: dict[str, Any] = Field(default={})
    down: list[str] = Field(default=[])
    drain: list[str] = Field(default=[])
    te: bool = False
    offline: bool = False
    mode: str | None = None
    repeats: Annotated[int, Field(ge=1, le=MOST_REPEATS)] | None = None
    needs: list[str] = Field(default=[])

    @model_validator(mode="after")
    def _sends_one_thing(self) -> Self:
        given = [key for key in ("run", "workload", "measure") if getattr(self, key) is not None]
        if len(given) != 1:
            why = f"and {given[1]} exclude each other" if given else "is missing"
            raise at(f".{given[0]}" if given else ".run", why, "write one of run, workload and measure")
        if self.options and self.measure is None:
            raise at(".options", "are those of a measure", "write the options of a run below run")
        if self.offline and (live := next((k for k in ("hashing", "queues", "te") if getattr(self, k)), "")):
            hint = "write mode: te" if live == "te" else "write it below set"
            raise at(f".{live}", "is a live change, but this run is offline", hint)
        if self.te and self.measure is not None:
            raise at(".te", "plans for a workload, but this run is a measure", "use a run, or leave te out")
        if self.mode is not None and not self.offline:
            raise at(".mode", "is for an offline run", "write hashing, or routing.ecmp below set")
        return self


def _sign(text: str) -> str:
    if not SIGN.fullmatch(text):
        raise wrong("is not a sign", "write above 1, below 0.3 or is 0")
    return text


class BreakSpec(Strict):
    """What must make a check fail. runs: run -> keys, merged over the file's; set: keys of the fabric, of all its runs.

    why: what is broken, in words.
    """

    runs: dict[str, dict[str, Any]] = Field(default={})
    set: dict[str, Any] = Field(default={})
    why: str = Field(default="", examples=["switches hash the 5-tuple alone"])

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.runs and not self.set:
            raise at(".runs", "is missing, and so is set", "write runs: {RUN: {hashing: flow}}, or set: {key: value}")
        return self

    def text(self) -> str:
        """Why; without it, the changed keys: `many: hashing: flow`."""
        changed = {**self.runs, **({"set": self.set} if self.set else {})}
        return self.why or "; ".join(f"{name}: {value_text(flat(keys))}" for name, keys in changed.items())


class CheckSpec(Strict):
    """One comparison. value: an expression over the figures of runs (base/conditions.py).

    published: the published figure, as text or as a number. low, high: the band, both included; tolerance: instead of
    them, the share of a published number; sign: instead of a band, one side (`above 1`) or one value (`is 0`). Without
    any of them the value is only shown. exact: it cannot vary, so all repeats must be equal. draws: a list of its
    offline runs, as `routing.seed`, whose values are random: the interval is over them. broken_by: what must make it
    fail. proof: false where paths change on purpose while its runs last; default: the file's.
    """

    value: str = Field(examples=["busbw(a) / busbw(b)"])
    about: str = ""
    unit: str = ""
    published: str | float | None = None
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    tolerance: Annotated[float, Field(ge=0, le=1)] | None = None
    sign: Annotated[str, AfterValidator(_sign)] | None = Field(default=None, examples=["above 1"])
    exact: bool = False
    draws: str | None = Field(default=None, examples=["routing.seed"])
    broken_by: BreakSpec | None = None
    proof: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_whole(cls, data: Any) -> Any:
        """In `{value: busbw(a, qps=4)}` YAML takes the comma for the end of the value."""
        if isinstance(data, dict) and any("=" in str(key) or ")" in str(key) for key in data):
            raise at(".value", "ends at a comma, since it is in braces", 'put it in quotes: value: "..."')
        return data

    @model_validator(mode="after")
    def _has_one_claim(self) -> Self:
        if self.tolerance is not None and (isinstance(self.published, str) or self.published is None):
            raise at(".tolerance", "needs a published number", "write low and high")
        given = [key for key in ("tolerance", "low", "high", "sign") if getattr(self, key) is not None]
        if len(given) > 1 and given != ["low", "high"]:
            raise at(f".{given[0]}", f"excludes {given[-1]}", "keep one of the two")
        if given in (["low"], ["high"]):
            other, word = ("high", "above") if given == ["low"] else ("low", "below")
            hint = f"write {other}, too, or only what is claimed: sign: {word} {getattr(self, given[0]):g}"
            raise at(f".{given[0]}", f"has no {other}: a band has two sides", hint)
        if isinstance(self.published, float) and not abs(self.published) <= LARGEST:
            raise at(".published", f"is not a number from -{LARGEST:g} to {LARGEST:g}", "write it as text")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise at(".low", f"is above high, {self.high:g}", "exchange them")
        for key in ("broken_by", "exact"):
            if not given and getattr(self, key):
                raise at(f".{key}", "is of a check with a band or a sign", "write low and high, or sign: above 1")
        return self

    @property
    def bounds(self) -> Condition | None:
        """What it claims of the value; None of a value that is only shown."""
        if self.sign is not None:
            return Condition(self.sign)
        if self.tolerance is not None and isinstance(self.published, float | int):
            reach = abs(self.published) * self.tolerance
            return Condition.between(self.published - reach, self.published + reach)
        return None if self.low is None or self.high is None else Condition.between(self.low, self.high)


class ExperimentSpec(Strict):
    """An experiment file. proof: the paths of live runs must be proven. reads: what the result shows, in words."""

    title: str = Field(examples=["Queue pairs and bandwidth"])
    claim: ClaimSpec | None = None
    reads: str = ""
    fabric: Annotated[FabricUse, _short("use")] = Field(examples=["tiny"])
    runs: dict[str, RunSpec]
    checks: dict[str, Annotated[CheckSpec, _short("value")]] = Field(default={})
    repeats: Annotated[int, Field(ge=1, le=MOST_REPEATS)] = 1
    proof: bool = True
    needs: list[str] = Field(default=[])


class LeftOutSpec(Strict):
    """What a publication has and this folder does not. what: its name or section; why: the reason."""

    what: str = Field(examples=["Section 7.3"])
    why: str = Field(examples=["needs hardware"])


class FolderSpec(Strict):
    """`index.yml` of a folder of experiments. statement: printed with every result.

    experiments: file names without `.yml`, in their order; all files of the folder, if it is left out. report: the
    form of the report that `--out` writes as well: bmwg, the ten parts of that draft.
    """

    title: str = Field(examples=["Results of a paper"])
    source: str = Field(examples=["the paper"])
    statement: str = ""
    experiments: list[str] = Field(default=[])
    left_out: list[LeftOutSpec] = Field(default=[])
    report: Literal["bmwg"] | None = None
