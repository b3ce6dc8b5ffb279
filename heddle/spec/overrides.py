"""Values of Python as the `path=value` texts of --set.

In:  nested keys of a fabric file, with plain values. Out: path and text of each, which is read back as the same value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from heddle.base.problems import InputError


def settings_of(keys: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Path -> value of nested keys; a mapping whose keys are numbers, as of `queues.dscp`, is a value."""
    for key, value in keys.items():
        if isinstance(value, Mapping) and value and all(isinstance(each, str) for each in value):
            yield from settings_of(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def value_text(path: str, value: object) -> str | None:
    """A Python value as YAML that is read back as the same value; None for what YAML does not have."""
    if isinstance(value, str):
        return value if _plain(path, value) else json.dumps(value)
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        parts = [json.dumps(each) if isinstance(each, str) else value_text(path, each) for each in value]
        return None if None in parts else f"[{', '.join(map(str, parts))}]"
    if isinstance(value, Mapping):
        pairs = [
            (str(key), json.dumps(each) if isinstance(each, str) else value_text(path, each))
            for key, each in value.items()
        ]
        return None if any(text is None for _, text in pairs) else f"{{{', '.join(f'{k}: {t}' for k, t in pairs)}}}"
    return None


def _plain(path: str, text: str) -> bool:
    """Whether a text needs no quotes to be read as itself; then problems show it as it was typed."""
    from heddle.spec.yamlfile import parse_value  # the plugin imports this module, and PyYAML is slow to load

    try:
        return bool(parse_value(text, "", (path,))[0] == text)
    except InputError:
        return False
