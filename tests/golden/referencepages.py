"""The pages of the manual that are made from the code: verbs, keys of a fabric file, exit codes and variables."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from heddle.base.units import format_duration, format_rate, format_size, shown
from heddle.base.variables import VARIABLES
from heddle.cli.endings import EXIT_CODES
from heddle.cli.program import example_line, examples, help_rows
from heddle.cli.verbs import GROUPS, Command
from heddle.spec.keys import Duration, Rate, Size, Takes
from heddle.spec.schema import FabricSpec
from heddle.spec.shapes import DEFAULT, SHAPES
from heddle.spec.wording import PATTERNS

MADE = "<!-- Made from the code: pytest tests/golden/test_reference_pages.py --regen-goldens -->"


def _size(value: int) -> str:
    if value >= 10_000 and value % 1000 == 0:
        return shown(value)
    return format_size(value) if value >= 10_000 and value % 1024 == 0 else f"{value}"


_UNITS = (
    (Size, "a size", _size),
    (Rate, "a rate", format_rate),
    (Duration, "a duration", format_duration),
)


def verbs_page(commands: Mapping[str, Command]) -> str:
    """Each verb: usage, text, words and flags, examples."""
    lines = [MADE, "", "# Verbs", ""]
    lines += ["After this page you know every verb and flag. `./inv VERB --help` prints the same.", ""]
    for group in GROUPS:
        verbs = ((f"[`{n}`](#{n})", _first(each)) for n, each in commands.items() if each.verb.group == group)
        lines += [f"**{group}**", "", *_table(("verb", "does"), verbs), ""]
    for name, command in commands.items():
        text = command.text.split("\n", 1)
        lines += ["", f"## {name}", "", "```text", command.verb.usage, "```", "", _prose(text[0])]
        lines += ["", _prose(inspect.cleandoc(text[1]))] if text[1:] else []
        for heading, flags in help_rows(command.verb).items():
            head = "argument or flag" if heading == "Arguments and flags" else heading
            lines += ["", *_table((head, "does"), ((f"`{w}`", _prose(t)) for w, t in flags))]
        lines += ["", "```sh"]
        shown = examples()[name].items()
        lines += [line for words, does in shown for line in (f"# {does}", example_line(name, words))]
        lines += ["```"]
    return "\n".join([*lines, ""])


def keys_page() -> str:
    """Each key of a fabric file: what it takes, and its default."""
    common = dict(_keys(FabricSpec))
    common["shape"] = SHAPES[DEFAULT].model_fields["shape"]
    lines = [MADE, "", "# Keys of a fabric file", ""]
    lines += ["After this page you know what each key accepts. [Fabric file](fabric-file.md) explains the keys.", ""]
    lines += ["## All shapes", "", *_key_table(common.items())]
    for name, spec in SHAPES.items():
        own = {path: field for path, field in _keys(spec) if path not in common}
        lines += ["", f"## shape: {name}", "", *_key_table(own.items())]
    return "\n".join([*lines, ""])


def codes_page() -> str:
    """Exit codes, and variables."""
    lines = [MADE, "", "# Exit codes and environment variables", ""]
    lines += ["After this page you can test the result of a verb in a script, and change where Heddle keeps files.", ""]
    lines += ["## Exit codes", "", *_table(("code", "meaning"), ((f"{c}", t) for c, t in sorted(EXIT_CODES.items())))]
    lines += ["", "`exec` returns the exit code of its command. With `--format json`, an error is JSON on stdout, too."]
    rows = ((f"`{each.name}`", each.sets, each.unset) for each in VARIABLES)
    lines += ["", "## Environment variables", "", *_table(("variable", "sets", "when it is not set"), rows)]
    return "\n".join([*lines, ""])


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]


def _first(command: Command) -> str:
    return _prose(command.text.split("\n")[0])


def _prose(text: str) -> str:
    """A text of the help as Markdown: pages are links, and no character has another meaning."""
    return re.sub(r"docs/([a-z-]+)\.md", r"[\1](\1.md)", re.sub(r"[*<]", r"\\\g<0>", text))


def _keys(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for key, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _keys(inner, f"{before}{key}.")
        else:
            yield before + key, field
    if model.model_config.get("extra") == "allow":
        values = typing.get_args(typing.get_type_hints(model, include_extras=True)["__pydantic_extra__"])[1]
        yield f"{before}LEVEL", FieldInfo(annotation=values, default=None)


def _key_table(keys: Iterable[tuple[str, FieldInfo]]) -> list[str]:
    shapes = ", ".join(f"`{name}`" for name in SHAPES)
    rows = (
        (f"`{path}`", shapes if path == "shape" else _takes(field.annotation, field.metadata), _default(field))
        for path, field in keys
    )
    return _table(("key", "takes", "default"), rows)


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "needed"
    if value is None or value == {}:
        return "none"
    for kind, _, text in _UNITS:
        if typing.get_args(kind)[1] in field.metadata:
            return f"`{text(value)}`"
    word = f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
    return "`" + word.replace("'", "") + "`"


def _takes(annotation: Any, metadata: Sequence[Any] = ()) -> str:  # noqa: PLR0911  (one for each kind of type)
    """What a key accepts, in words."""
    metadata = [part for each in metadata for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
    for each in metadata:
        if isinstance(each, Takes):
            return each.words
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _takes(inside[0], inside[1:])
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in inside)
    if origin is list:
        return f"a list, each value {_takes(inside[0])}"
    if origin is dict:
        return f"a map, each value {_takes(inside[1])}"
    if inside:
        return ", or ".join(_takes(each, metadata) for each in inside if each is not type(None))
    if issubclass(annotation, BaseModel):
        return f"a map of {', '.join(f'`{key}`' for key in annotation.model_fields)}"
    pattern = next((found for m in metadata if (found := getattr(m, "pattern", None))), None)
    if pattern:
        return f"a text: {PATTERNS[pattern].removeprefix('use ')}"
    for kind, word, text in _UNITS:
        if typing.get_args(kind)[1] in metadata:
            return _within(word, metadata, text)
    words = {bool: "`true`, `false`", int: "a whole number", float: "a number", str: "a text"}
    return _within(words[annotation], metadata, lambda value: f"{value:,}")


def _within(word: str, metadata: Sequence[Any], text: Any) -> str:
    low, above, high = (next((getattr(m, n) for m in metadata if hasattr(m, n)), None) for n in ("ge", "gt", "le"))
    if low is not None and high is not None:
        return f"{word} from {text(low)} to {text(high)}"
    if above is not None and high is not None:
        return f"{word} above {text(above)}, up to {text(high)}"
    return f"{word}, at least {text(low)}" if low is not None else word
