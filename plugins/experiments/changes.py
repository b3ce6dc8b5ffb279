"""What a change of fabric files does to a workload, predicted offline: paths moved, worst link, MMR, completion.

In:  two fabric files, or two folders of them, or `REV:path` of a git repository; workloads; limits.
Out: ChangeResult for each pair of files and workload. Predictions are exact, so equal files give equal figures: an
unchanged pair is never beyond a limit.
"""

from __future__ import annotations

import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from posixpath import normpath
from subprocess import run as started
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heddle.base.events import Observer
from heddle.base.files import absent, is_dir, real
from heddle.base.problems import CheckError, HeddleError, InputError, MachineError, Problem, Problems
from heddle.base.process import run
from heddle.offline.forecast import Ask, forecast
from heddle.offline.moves import FabricSide, PathChange, path_change
from heddle.runs.figures import FIGURES
from heddle.spec.load import presets

if TYPE_CHECKING:
    from heddle.offline.result import Prediction
    from heddle.traffic.workload import Workload

_LIMIT: Final = re.compile(r"(\+?)([0-9]{1,6}(?:\.[0-9]{1,6})?)(%?)")
_CLOSE: Final = 1e-9  # relative: of floating-point sums


@dataclass(frozen=True, slots=True)
class ChangeLimit:
    """A limit of a figure. more: the growth over the base is limited, as a share of it; else the figure itself."""

    text: str
    value: float
    more: bool

    @classmethod
    def parse(cls, figure: str, text: str) -> ChangeLimit:
        """`+5%`: growth; `1.3`: a figure. InputError for other texts.

        figure: one of LIMITED. `moved` is a share, so `10%` is 0.1; a time is in seconds, so only its growth counts.
        """
        flag, share, only_growth = f"--max-{figure}", figure == "moved", figure == "worst-link"
        found = _LIMIT.fullmatch(text.strip())
        plus, number, percent = found.groups() if found else ("", "", "")
        wrong = bool(plus) or float(number or 0) > (100 if percent else 1) if share else bool(plus) != bool(percent)
        if not found or wrong or (only_growth and not plus):
            hint = f"write {flag} +5% for a growth, or a number as 1.3"
            if share or only_growth:
                hint = f"write {flag} {'10%' if share else '+5%'}"
            raise InputError(Problem("", f"{flag} {text}", "is not a limit", hint))
        return cls(text.strip(), float(number) / (100 if percent else 1), bool(plus))

    def exceeded(self, base: float | None, head: float | None) -> bool:
        """Whether the head is beyond it, and worse than the base. A figure that is new has no base to grow from."""
        if head is None or (self.more and base is None) or (base is not None and head <= base * (1 + _CLOSE)):
            return False
        most = self.value if not self.more else (base or 0.0) * (1 + self.value)
        return head > most * (1 + _CLOSE)


# Figure -> its words. The flags of limits are `--max-` and the figure.
LIMITED: Final[Mapping[str, str]] = {
    "worst-link": "time of the worst link",
    "moved": "share of paths that moved",
    "mmr": "max/mean of links upwards",
    "completion": "time / shortest possible time",
}


@dataclass(frozen=True)
class ChangeResult:
    """One pair of fabrics with one workload. name: of the pair, as a file of both folders.

    paths: None where packets of one flow take several paths. beyond: what exceeds a limit, a line each.
    """

    name: str
    workload: str
    base: Prediction
    head: Prediction
    paths: PathChange | None
    beyond: tuple[str, ...] = ()

    def figure(self, name: str) -> tuple[float | None, float | None]:
        """One of LIMITED, before and after."""
        if name == "moved":
            return 0.0, None if self.paths is None else self.paths.share
        of = FIGURES["time" if name == "worst-link" else name].predicted
        return (None, None) if of is None else (of(self.base, {}), of(self.head, {}))

    @property
    def links(self) -> tuple[int, int]:
        """Links upwards with ranks below them, over which the MMR is, before and after."""
        before, after = (
            int((p.ranked & np.isin(p.wires.direction, p.wires.upward)).sum()) for p in (self.base, self.head)
        )
        return before, after

    @property
    def worst(self) -> tuple[str, str]:
        """The port of the worst link, before and after."""
        return _worst(self.base), _worst(self.head)

    def to_json(self) -> dict[str, Any]:
        paths = self.paths
        moved = None
        if paths is not None:
            moved = {
                "common": paths.common, "moved": paths.moved, "share": paths.share, "added": paths.added,
                "removed": paths.removed, "lost": paths.lost,
            }  # fmt: skip
        figures = {name: self.figure(name) for name in LIMITED if name != "moved"}
        return {
            "name": self.name, "workload": self.workload, "paths": moved,
            **{name.replace("-", "_"): {"base": base, "head": head} for name, (base, head) in figures.items()},
            "links_upwards": {"base": self.links[0], "head": self.links[1]},
            "worst_port": {"base": self.worst[0], "head": self.worst[1]},
            "unreachable": {"base": self.base.unreachable, "head": self.head.unreachable},
            "beyond": list(self.beyond), "ok": not self.beyond,
        }  # fmt: skip


@dataclass(frozen=True)
class Changes:
    """All pairs. added, removed: fabric files of one folder only; one that is gone is an error."""

    results: tuple[ChangeResult, ...]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no pair is beyond a limit, and no file is gone."""
        return not self.removed and not any(each.beyond for each in self.results)

    def to_json(self) -> dict[str, Any]:
        results = [each.to_json() for each in self.results]
        return {"ok": self.ok, "pairs": results, "added": list(self.added), "removed": list(self.removed)}


def compare_fabrics(
    base: str, head: str, workloads: Mapping[str, Workload], limits: Mapping[str, ChangeLimit], observer: Observer
) -> Changes:
    """Predict every pair with every workload. InputError with the problems of all files, in words of the user."""
    from heddle.fabric.fabricfile import load_fabric

    with ExitStack() as stack:
        old, named = stack.enter_context(fabric_files(base))
        new, also = stack.enter_context(fabric_files(head))
        folders = named and also
        if len(old) == len(new) == 1 and not folders:  # two files, whatever their names
            new = dict(zip(old, new.values(), strict=True))
        both = [name for name in old if name in new]
        if not both and not folders:
            why = "have no fabric file in common"
            raise InputError(Problem("", f"{base} and {head}", why, "name two files, or two folders with equal names"))
        problems, found = Problems(), []
        added = tuple(name for name in new if name not in old)
        for name in added:
            try:
                load_fabric(new[name])
            except InputError as error:
                problems.found += error.problems
        for name in both:
            for word, workload in workloads.items():
                try:
                    found.append(_compared(name, word, workload, (old[name], new[name]), limits, observer))
                except (InputError, CheckError) as error:
                    problems.found += error.problems
        problems.found[:] = dict.fromkeys(problems.found)
        problems.raise_if_any()
        return Changes(tuple(found), added, tuple(name for name in old if name not in new))


def _compared(
    name: str,
    word: str,
    workload: Workload,
    files: tuple[str, str],
    limits: Mapping[str, ChangeLimit],
    observer: Observer,
) -> ChangeResult:
    from heddle.fabric.fabricfile import load_fabric

    one, other = (forecast(load_fabric(file).fabric, workload, Ask(), observer) for file in files)
    paths = path_change(FabricSide(one.wires, one.jobs), FabricSide(other.wires, other.jobs))
    result = ChangeResult(name, word, one, other, paths)
    return ChangeResult(name, word, one, other, paths, tuple(_beyond(result, limits)))


def _beyond(result: ChangeResult, limits: Mapping[str, ChangeLimit]) -> Iterator[str]:
    if result.head.unreachable > result.base.unreachable:
        yield f"{result.head.unreachable:,} flows have no path, before {result.base.unreachable:,}"
    before, after = result.links
    found: dict[str, str] = {}
    for name, limit in limits.items():
        # A mean over fewer links is larger, and the MMR smaller: so the time of the worst link decides.
        decides = "worst-link" if name == "mmr" and limit.more and after < before else name
        base, head = result.figure(decides)
        if limit.exceeded(base, head):
            was = "" if name == "moved" else f", before {_number(base)}"
            for_mmr = f", for the MMR of fewer links ({after}, before {before})" if decides != name else ""
            found.setdefault(decides, f"{LIMITED[decides]} is {_number(head)}{was}; the limit is {limit.text}{for_mmr}")
    yield from found.values()


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _worst(prediction: Prediction) -> str:
    first = prediction.modes[0]
    return prediction.wires.ports[first.busiest] if first.seconds else ""


@contextmanager
def fabric_files(typed: str) -> Iterator[tuple[dict[str, str], bool]]:
    """Name -> fabric file of a preset, a file, a folder, or `REV:path` of the git repository here; if it is a folder.

    Names tell what is gone from a folder. Files of a revision are in a temporary directory, for the with block.
    """
    path = real(typed)
    if typed in presets():
        yield {typed: typed}, False
        return
    if not absent(path) or ":" not in typed:
        folder = is_dir(path, typed)
        yield _in_folder(path, typed) if folder else {path.name: typed}, folder
        return
    rev, _, inner = typed.partition(":")
    with tempfile.TemporaryDirectory(prefix="heddle-check-") as place:
        found = _extracted(rev, inner, Path(place))
        try:
            yield _in_folder(found, typed) if found.is_dir() else {found.name: str(found)}, found.is_dir()
        except InputError as error:  # of a file in the directory: the user knows it by its revision
            old, new = f"{place}/", f"{rev}:"
            named = [
                replace(each, where=each.where.replace(old, new), what=each.what.replace(old, new))
                for each in error.problems
            ]
            raise InputError(*named) from None


def _in_folder(folder: Path, typed: str) -> dict[str, str]:
    """The fabric files below a folder: YAML files with a key `name`, without topologies of containerlab."""
    files = sorted(each for each in folder.rglob("*.y*ml") if not each.name.endswith(".clab.yml"))
    found = {str(each.relative_to(folder)): str(each) for each in files if _names_a_fabric(each)}
    if not found:
        raise InputError(Problem("", typed, "has no fabric file", "name a folder as topologies"))
    return found


def _names_a_fabric(path: Path) -> bool:
    """Whether the file is one of a fabric; one with errors in its syntax is, too, so that they are reported."""
    from heddle.spec.yamlfile import parse, read_text

    try:
        data = parse(read_text(path, str(path)), str(path)).data
    except HeddleError:
        return True
    return "name" in data and "topology" not in data


def _extracted(rev: str, inner: str, folder: Path) -> Path:
    """The file or folder of a revision, written below `folder`."""
    typed = f"{rev}:{inner}"
    known = run(["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}"], check=False)
    if known.code or not rev:
        hint = "use a branch, a tag or a commit of the repository here, as main:topologies/zone.yml"
        raise InputError(Problem("", typed, "is neither a file nor of a revision", hint))
    at = run(["git", "rev-parse", "--show-toplevel", "--show-prefix"]).out.splitlines()
    if inner.startswith(("./", "../")):  # as git reads it; others begin at the root
        inner = normpath(f"{at[1]}{inner}")
    argv = ["git", "-C", at[0], "archive", "--format=tar", known.out.strip(), "--", inner or "."]
    done = started(argv, capture_output=True, check=False)
    if done.returncode:
        hint = "name its path from the root of the repository, or from here with ./"
        raise InputError(Problem("", typed, "is not in that revision", hint))
    try:
        with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
            _unpack(archive, folder)
    except (tarfile.TarError, OSError) as error:
        raise MachineError(Problem("", typed, f"cannot be read: {error}")) from None
    return folder / inner


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Write its files below a folder. TarError for a member that leaves the folder, and for a device."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    for each in archive:  # Python before 3.11.4, as Debian 12 has it: links are refused, too, as one may lead out
        inside = not each.name.startswith("/") and ".." not in each.name.split("/")
        if not inside or not (each.isreg() or each.isdir()):
            raise tarfile.TarError(f"{each.name} is a link, a device or outside of its folder")
        each.uid, each.gid, each.mode = os.geteuid(), os.getegid(), 0o755 if each.isdir() else 0o644
        archive.extract(each, folder)
