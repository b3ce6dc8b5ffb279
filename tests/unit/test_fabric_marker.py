"""The marker `fabric`: its arguments are a fabric file's name and `--set`, and mistakes are named together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
from heddle.testing.fabricmarker import FabricRequest, request_of, value_text

WHERE = "test_mine.py:7"


def wrong(*args: object, **keys: object) -> list[str]:
    with pytest.raises(InputError) as caught:
        request_of(args, keys, where=WHERE)
    return [str(each) for each in caught.value.problems]


def test_nested_keys_are_those_of_set() -> None:
    request = request_of(("zone",), {"routing": {"ecmp": "e-ecmp", "resilient": False}, "racks": 3})
    assert request == FabricRequest("zone", ("routing.ecmp=e-ecmp", "routing.resilient=false", "racks=3"))
    assert request.title == "zone, routing.ecmp=e-ecmp, routing.resilient=false, racks=3"
    assert request.load().spec == load_fabric("zone", overrides=request.overrides).spec


@pytest.mark.parametrize(
    ("keys", "path", "value"),
    [
        ({"queues": {"dscp": {26: 0}}}, "queues.dscp", {"26": 0}),
        ({"queues": {"lossless": [3, 4]}}, "queues.lossless", [3, 4]),
        ({"queues": {"lossless": (3,)}}, "queues.lossless", [3]),
        ({"link": {"host": "50mbit"}}, "link.host", 50_000_000),
        ({"routing": {"hash": {"fields": ["src", "sport"]}}}, "routing.hash.fields", ["src", "sport"]),
    ],
)
def test_python_values_reach_the_fabric_as_they_are(keys: dict[str, Any], path: str, value: object) -> None:
    spec: Any = request_of(("tiny",), keys).load().spec
    found = spec.model_dump()
    for step in path.split("."):
        found = found[step]
    assert (list(found) if isinstance(found, tuple) else found) == value


@pytest.mark.parametrize("text", ["no", "1e3", "true", "null", " x", "a: b", "#", "", "[", "0x10", "~"])
def test_a_text_that_yaml_would_read_as_something_else_gets_quotes(text: str) -> None:
    from heddle.spec.yamlfile import parse_value

    written = value_text("key", text)
    assert written is not None
    assert parse_value(written, "", ("key",))[0] == text


def test_a_path_is_relative_to_the_test_file_and_a_word_is_a_preset(tmp_path: Path) -> None:
    (tmp_path / "a place").mkdir()
    (tmp_path / "a place" / "mine.yml").write_text("name: mine\nracks: 2\nctsw: 3\n")
    request = request_of(("a place/mine.yml",), {}, directory=tmp_path)
    assert request.fabric == str(tmp_path / "a place" / "mine.yml")
    assert len(request.load().fabric.switches) == 5
    assert request_of((tmp_path / "a place" / "mine.yml",), {}, directory=Path("/")).fabric == request.fabric
    assert request_of(("tiny",), {}, directory=tmp_path).fabric == "tiny"


def test_mistakes_have_the_place_of_the_test_or_the_line_of_the_file(tmp_path: Path) -> None:
    (said,) = wrong("tiny", routing={"ecmp": "eecmp"})
    assert said.startswith("test_mine.py:7  routing.ecmp: eecmp is not one of flow, e-ecmp")
    assert "did you mean e-ecmp?" in said
    assert [each.splitlines()[0] for each in wrong("tiny", rack=2, link={"mtu": 9})] == [
        "test_mine.py:7  link.mtu: 9 is below 1280", "test_mine.py:7  rack is not a key",
    ]  # fmt: skip
    (said,) = wrong("tinny")
    assert said.startswith("test_mine.py:7  tinny is neither a preset nor a file") and "did you mean tiny?" in said
    # A mistake in a file has the line of the file.
    (tmp_path / "mine.yml").write_text("name: mine\nracks: two\nctsw: 3\n")
    with pytest.raises(InputError) as caught:
        request_of(("mine.yml",), {"queues": {"bufer": 1}}, where=WHERE, directory=tmp_path)
    assert [each.where for each in caught.value.problems] == [f"{tmp_path / 'mine.yml'}:2", WHERE]


def test_arguments_that_are_no_fabric_are_all_named() -> None:
    assert wrong() == wrong_of("fabric()")
    assert wrong("tiny", "zone") == wrong_of("fabric('tiny', 'zone')")
    assert wrong(7) == wrong_of("fabric(7)")
    said = wrong("tiny", name="mine", racks=wrong, **{"a=b": 1})
    assert [each.splitlines()[0][:60] for each in said] == [
        "test_mine.py:7  name: mine cannot be set: the plugin chooses",
        f"test_mine.py:7  racks: {wrong!r} is a Python function"[:60],
        "test_mine.py:7  'a=b' is not a key of a fabric file"[:60],
    ]
    assert "is a Python function, which no fabric file can contain" in said[1]


def wrong_of(call: str) -> list[str]:
    why = "needs one argument: a preset's name or the path of a fabric file"
    return [f'{WHERE}  {call} {why}\n{" " * (len(WHERE) + 2)}hint: write @pytest.mark.fabric("tiny")']
