"""Find experiment files: by name in traffic/experiments, or by path; and the files that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from heddle.base import files, resources
from heddle.base.files import beside, expanded, real, short_path
from heddle.base.problems import HeddleError, InputError, Problem, did_you_mean
from heddle.base.untrusted import kept_below
from heddle.spec.yamlfile import ReadOptions, parse, read_text

FOLDER: Final = "experiments"
ENDINGS: Final = (".yml", ".yaml")
READING: Final = ReadOptions(kind="experiment", example="traffic/experiments/queue-pairs.yml")


def experiments_shipped() -> list[str]:
    """Names of the experiments that Heddle ships, without folders, sorted."""
    return sorted(path.stem for path in shipped().glob("*.yml"))


def shipped() -> Path:
    """traffic/experiments."""
    return resources.HERE.content(resources.TRAFFIC) / FOLDER


def find_experiment(typed: str) -> tuple[Path, str]:
    """The file of a name or a path, and its name in problems."""
    if typed in experiments_shipped():
        path = shipped() / f"{typed}.yml"
        return path, short_path(path)
    path = real(typed)
    if path.suffix in (".yml", ".yaml") or files.is_file(path, typed):
        return path, typed
    known = [*experiments_shipped()]
    raise InputError(Problem("", typed[:200] or "the experiment", "is not an experiment", did_you_mean(typed, known)))


def files_of_experiment(typed: str) -> list[str]:
    """The user's files that an experiment needs: its own, those of fabrics and workloads, all below its folder.

    InputError for others: the experiment may be of another user, and the files are sent to another machine.
    """
    from heddle.endpoints.stepsfile import names_of
    from heddle.endpoints.workloadfile import files_of, named_in

    if not typed or typed in experiments_shipped():
        return []
    try:
        data = parse(read_text(real(typed), typed, READING), typed, READING).data
        broken = [check["broken_by"] for check in data.get("checks", {}).values() if "broken_by" in check]
        changes = [change for each in broken for change in each.get("runs", {}).values()]
        runs = [each for each in (*data["runs"].values(), *changes) if isinstance(each, dict)]
        uses = [each["fabric"] for each in (data, *runs) if "fabric" in each]
        fabrics = [str(each["use"] if isinstance(each, dict) else each) for each in uses]
        typed_works = [each["workload"] for each in runs if "workload" in each]
        works = [str(work) for each in typed_works for work in (each if isinstance(each, list) else [each])]
        found = [beside(typed, each) for each in fabrics if is_file(each)]
        found += [
            name for each in runs for name in names_of(each.get("run") or {}, lambda name: beside(typed, name))
        ]  # fmt: skip
        for each in works:
            if each.endswith(ENDINGS):
                found += [beside(typed, each), *named_in(beside(typed, each))]
            elif is_file(each):
                found += files_of(each)
    except (HeddleError, AttributeError, KeyError, TypeError):  # load_experiment reports it
        return [typed]
    return [typed, *kept_below(expanded(typed), found)]


def is_file(word: str) -> bool:
    """Whether a word names a file, and not a preset or a workload of Heddle."""
    return "/" in word or word.endswith(ENDINGS)
