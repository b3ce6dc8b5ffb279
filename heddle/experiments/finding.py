"""Find experiment files: by name in traffic/experiments, or by path; and the files that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from heddle.base import resources
from heddle.base.files import real, short_path
from heddle.base.problems import HeddleError, InputError, Problem, did_you_mean
from heddle.spec.yamlfile import ReadOptions, parse, read_text

FOLDER: Final = "experiments"
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
    if path.suffix in (".yml", ".yaml") or path.is_file():
        return path, typed
    known = [*experiments_shipped()]
    raise InputError(Problem("", typed[:200] or "the experiment", "is not an experiment", did_you_mean(typed, known)))


def files_of_experiment(typed: str) -> list[str]:
    """The user's files that an experiment needs: its own, those of fabrics and workloads. Nothing is checked."""
    from heddle.endpoints.workloadfile import files_of, typed_files

    if not typed or typed in experiments_shipped():
        return []
    try:
        data = parse(read_text(real(typed), typed, READING), typed, READING).data
        broken = [check["broken_by"] for check in data.get("checks", {}).values() if "broken_by" in check]
        changes = [change for each in broken for change in each.get("runs", {}).values()]
        runs = [each for each in (*data["runs"].values(), *changes) if isinstance(each, dict)]
        uses = [each["fabric"] for each in (data, *runs) if "fabric" in each]
        fabrics = [str(each["use"] if isinstance(each, dict) else each) for each in uses]
        groups = [
            group
            for each in runs
            for group in (each.get("run") or {}, *(each.get("run") or {}).get("jobs", {}).values())
        ]
        typed_works = [each["workload"] for each in runs if "workload" in each]
        works = [str(work) for each in typed_works for work in (each if isinstance(each, list) else [each])]
        named = [*filter(is_file, fabrics), *(file for each in groups for file in typed_files(each))]
        found = [beside(typed, file) for file in named]
        found += [file for each in works if is_file(each) for file in files_of(beside(typed, each))]
    except (HeddleError, AttributeError, KeyError, TypeError):  # load_experiment reports it
        return [typed]
    return [typed, *dict.fromkeys(found)]


def beside(file: str, name: str) -> str:
    """A file that another one names: relative to that one's folder."""
    return name if name.startswith(("/", "~")) else str(Path(file).parent / name)


def is_file(word: str) -> bool:
    """Whether a word names a file, and not a preset or a workload of Heddle."""
    return "/" in word or word.endswith((".yml", ".yaml"))
