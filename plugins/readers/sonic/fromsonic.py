"""A fabric with the queues, PFC and hashing of a SONiC switch.

In:  a config_db.json, the fabric that gets its keys, and `--set path=value` overrides, which have priority over both.
Out: SonicFabric. InputError with all problems; one about an imported value names the line of the JSON file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heddle.base.files import real
from heddle.base.problems import Problems
from heddle.fabric.fabricfile import load_document
from heddle.spec.load import override, put, read_fabric
from heddle.spec.yamlfile import ReadOptions, read_text
from heddle_plugins.readers.sonic.configdb import as_text, name_of, parse_json
from heddle_plugins.readers.sonic.convert import convert

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.fabric.model import Fabric
    from heddle_plugins.readers.sonic.configdb import ImportedKey

_FILE: Final = ReadOptions(max_bytes=16 << 20, kind="config_db.json")
_BEFORE: Final = ("family", "link.", "scale", "shape")  # keys that imported values are derived from
_MOST_VALUES: Final = 1_000_000
# A line of a terminal around the output of `show runningconfiguration all` or `sonic-db-dump -n CONFIG_DB -y`.
_PROMPT: Final = re.compile(r"^[\w.-]+@[\w.-]+:[^\n]*?[$#]( [^\n]*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SonicFabric:
    """The result of an import.

    rows: what became of each key. data: the new fabric file. settings: the imported keys of it, by path; sources: the
    line and the key of the JSON file of each. fabric: the built one.
    """

    rows: tuple[ImportedKey, ...]
    data: Mapping[str, Any]
    settings: Mapping[str, Any]
    sources: Mapping[str, str]
    fabric: Fabric


def import_sonic(file: str, onto: str, overrides: Sequence[str] = ()) -> SonicFabric:
    """Read a config_db.json and check the fabric with its keys. onto: a preset's name or a fabric file."""
    problems = Problems()
    document = read_fabric(onto, name=None, overrides=(), problems=problems)
    before = deepcopy(document)
    for each in overrides:
        if each.startswith(_BEFORE):  # others may be valid only together with imported keys
            override(before, each, problems)
    base = load_document(before, problems)
    scaled = any(each.partition("=")[0].strip() == "scale" for each in overrides)
    text = _PROMPT.sub("", read_text(real(file), file, _FILE))
    tables = parse_json(text, file, _MOST_VALUES)
    found = convert(*tables, base.spec, scaled=scaled)
    for path, (value, trail) in found.settings.items():
        put(document, tuple(path.split(".")), value, found.where(trail), f"{as_text(value)} ({name_of(trail)})")
    for each in overrides:
        override(document, each, problems)
    loaded = load_document(document, problems)
    return SonicFabric(
        rows=tuple(found.rows),
        data=document.data,
        settings={path: value for path, (value, _) in found.settings.items()},
        sources={path: f"{found.where(trail)} {name_of(trail)}" for path, (_, trail) in found.settings.items()},
        fabric=loaded.fabric,
    )
