"""A folder of experiments with an index: a publication, claim by claim.

In:  a name below traffic/experiments, or the path of a folder with `index.yml`.
Out: Folder: its index and its experiments in order. InputError with all problems of all files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from heddle.base.files import is_dir, real, short_path
from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.spec.yamlfile import ReadOptions, parse, read_text
from heddle_plugins.experiments.finding import shipped
from heddle_plugins.experiments.loading import Experiment, load_experiment
from heddle_plugins.experiments.outcome import ExperimentResult
from heddle_plugins.experiments.spec import FolderSpec

INDEX: Final = "index.yml"
_NUMBER: Final = re.compile("[0-9]{1,6}(?=-)")
_READING: Final = ReadOptions(kind="index of experiments", example="docs/experiments.md")


@dataclass(frozen=True)
class Folder:
    """An index and its experiments."""

    name: str
    spec: FolderSpec
    experiments: tuple[Experiment, ...]

    def only(self, names: Sequence[str]) -> Folder:
        """With these experiments alone: names, or numbers. InputError for others.

        A number is that at the beginning of a name, as in `07-entropy`; without such names, the place from 1.
        """
        if not names:
            return self
        known = {each.name: {each.name} for each in self.experiments}
        numbered = any(_NUMBER.match(name) for name in known)
        for place, name in enumerate([*known], 1):
            begins = _NUMBER.match(name)
            if begins or not numbered:
                known.setdefault(str(int(begins[0]) if begins else place), set()).add(name)
        problems, chosen = Problems(), set[str]()
        for name in names:
            word = str(int(name)) if name.isdecimal() and len(name) <= 6 else name
            if word in known:
                chosen |= known[word]
            else:
                hint = did_you_mean(name, [each.name for each in self.experiments])
                problems.add(where="--only", what=name, why=f"is not an experiment of {self.name}", hint=hint)
        problems.raise_if_any()
        return Folder(self.name, self.spec, tuple(each for each in self.experiments if each.name in chosen))


@dataclass(frozen=True)
class FolderResult:
    """The results of a folder, in order; of those that ran."""

    folder: Folder
    results: tuple[ExperimentResult, ...]

    @property
    def failed(self) -> bool:
        """Whether an experiment failed; one that was skipped did not."""
        return any(each.failed for each in self.results)

    def to_json(self) -> dict[str, Any]:
        ran = not all(each.skipped for each in self.results)
        return {
            "name": self.folder.name, **self.folder.spec.model_dump(exclude={"experiments"}),
            "ok": not self.failed if ran else None, "experiments": [each.to_json() for each in self.results],
        }  # fmt: skip


def folders_shipped() -> list[str]:
    """Names of the folders that Heddle ships, sorted."""
    return sorted(path.parent.name for path in shipped().glob(f"*/{INDEX}"))


def find_folder(typed: str) -> tuple[Path, str]:
    """The directory of a name or a path, and its name in problems."""
    if typed in folders_shipped():
        return shipped() / typed, short_path(shipped() / typed)
    path = real(typed)
    if is_dir(path, typed):
        return path, typed
    hint = did_you_mean(typed, known) if (known := folders_shipped()) else f"name a directory with {INDEX}"
    raise InputError(Problem("", typed[:200] or "the folder", "is not a folder of experiments", hint))


def load_folder(typed: str) -> Folder:
    """Read and check the index and all experiments."""
    from heddle.spec.wording import examined

    directory, shown = find_folder(typed)
    file = f"{shown}/{INDEX}"
    document = parse(read_text(directory / INDEX, file, _READING), file, _READING)
    found = examined(document, FolderSpec)
    if found.value is None or found.problems:
        raise InputError(*found.problems)
    there = sorted(path.stem for path in directory.glob("*.yml") if path.name != INDEX)
    problems, experiments = Problems(), []
    for number, name in enumerate(found.value.experiments or there):
        where = document.where(("experiments", number))
        if name not in there:
            problems.add(where=where, what=name, why=f"is not a file {name}.yml", hint=did_you_mean(name, there))
            continue
        if name in (found.value.experiments or there)[:number]:
            problems.add(where=where, what=name, why="is there twice", hint="name each experiment once")
            continue
        try:
            experiments.append(load_experiment(directory / f"{name}.yml", f"{shown}/{name}.yml"))
        except InputError as error:
            problems.found += error.problems
    problems.raise_if_any()
    return Folder(directory.resolve().name, found.value, tuple(experiments))
