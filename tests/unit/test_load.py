"""Fabric files and their units: what is read, what overrides do, what mistakes outside the file look like."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.base.units import format_duration, format_rate, parse_duration, parse_rate, parse_size
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.wiring import Port
from heddle.spec.load import presets
from heddle.spec.plain import dump_spec
from heddle.spec.queuepolicy import QueuePolicy
from heddle.spec.yamlfile import MAX_BYTES, ReadOptions, parse
from heddle.switch.queues.classes import held_bps
from heddle.switch.queues.portqueues import DISCIPLINES
from tests.answers import Answers


def problems(name_or_path: str, *overrides: str, name: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load_fabric(name_or_path, name=name, overrides=overrides)
    return str(caught.value)


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "my fabric.yml"
    path.write_text(text)
    return str(path)


def test_a_file_is_read_as_yaml_1_2_with_units_and_aliases(tmp_path: Path) -> None:
    spec = load_fabric(write(tmp_path, "name: a\nracks: 3\nctsw: 5\nlink: {host: 1gbit, mtu: 9000}\n")).spec
    assert (spec.link.host, spec.link.mtu, dump_spec(spec)["racks"]) == (10**9, 9000, 3)
    # Words are read as yaml 1 2 reads them.
    assert load_fabric(write(tmp_path, "name: no\nracks: 1\nctsw: 1\n")).fabric.name == "no"
    # Aliases are followed.
    spec = load_fabric(write(tmp_path, "name: a\nracks: &n 3\nctsw: *n\n")).spec
    assert dump_spec(spec)["racks"] == dump_spec(spec)["ctsw"] == 3


def test_overrides_win_over_the_file_and_the_last_wins() -> None:
    spec = load_fabric("tiny", overrides=["routing.ecmp=e-ecmp", "link.host=1gbit", "racks=3", "racks=4"]).spec
    assert (spec.routing.ecmp, spec.link.host, dump_spec(spec)["racks"]) == ("e-ecmp", 10**9, 4)


def test_the_name_can_be_given_apart() -> None:
    assert load_fabric("tiny", name="other").fabric.name == "other"
    assert problems("tiny", name="Too-Long-A-Name").startswith("--name  name: Too-Long-A-Name is not a valid name")


def test_a_wrong_override_is_named(answers: Answers) -> None:
    answers(lambda override: problems("tiny", override))


def test_errors_of_file_and_overrides_come_together(tmp_path: Path) -> None:
    text = problems(write(tmp_path, "name: a\nracks: 0\nctsw: 2\n"), "link.mtu=17", "queues.bufer=1MB")
    assert "racks: 0" in text
    assert "link.mtu: 17" in text
    assert "did you mean buffer?" in text


def test_names_that_are_no_fabric_are_hinted(tmp_path: Path) -> None:
    assert problems("zoen") == "zoen is neither a preset nor a file\n  hint: did you mean zone?"
    assert f"presets: {', '.join(presets())}" in problems("something")
    # A missing file hints its neighbour.
    write(tmp_path, "name: a\n")
    assert f"did you mean {tmp_path}/my fabric.yml?" in problems(str(tmp_path / "my fabrik.yml"))
    # A directory is no fabric.
    assert "is a directory" in problems(str(tmp_path))
    # A large file is not read to its end.
    (tmp_path / "large.yml").write_bytes(bytes(MAX_BYTES + 1))
    assert f"is larger than {MAX_BYTES // 1024} KiB" in problems(str(tmp_path / "large.yml"))
    # No control character reaches the terminal.
    assert "\x1b" not in problems(write(tmp_path, 'name: "\\e[31mred"\nracks: 1\nctsw: 1\n'))


def test_a_file_without_its_ending_is_hinted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ai.yml").write_text("name: mine\n")
    monkeypatch.chdir(tmp_path)
    assert "did you mean ai.yml?" in problems("ai")


def test_a_hint_does_not_list_a_whole_directory(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:03}.yml").write_text("")
    said = problems(str(tmp_path / "quite-another.yml"))
    listed = "000.yml, 001.yml, 002.yml, 003.yml, 004.yml, 005.yml, 006.yml, 007.yml, ..."
    assert said.endswith(f"files in that directory: {listed}")


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "/"])
def test_no_odd_name_gets_through(name: str) -> None:
    assert problems(name)


def test_a_place_that_may_not_be_entered_is_not_called_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = Path.stat

    def refuse(path: Path, **how: bool) -> object:
        if path.name == "mine.yml":
            raise PermissionError
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", refuse)
    assert "mine.yml cannot be read: Permission denied" in problems(str(tmp_path / "mine.yml"))


@pytest.mark.timeout(60)  # a parser that is lost in one of them takes hours
def test_hostile_files_are_answered_in_time(tmp_path: Path) -> None:
    for text in ("[" * 20_000, "a: " + "9" * 20_000, "- " * 10_000, "{" * 20_000, '"' * 20_000, "&a " * 20_000):
        assert problems(write(tmp_path, text))


_STEPS = 400  # random values of each unit


@pytest.mark.parametrize(
    ("unit", "digits", "parse"),
    [
        *((unit, digits, parse_rate) for unit, digits in (("kbit", 3), ("mbit", 6), ("gbit", 9))),
        *((unit, digits, parse_size) for unit, digits in (("KB", 3), ("MB", 6), ("GB", 9))),
        *((unit, digits, parse_duration) for unit, digits in (("us", 3), ("ms", 6), ("s", 9))),
    ],
)
def test_every_decimal_that_is_whole_in_the_smallest_unit_is_read_exactly(
    unit: str, digits: int, parse: object
) -> None:
    dice = random.Random(f"{unit} {digits}")
    for _ in range(_STEPS):
        value, shown = dice.randrange(10 ** (digits + 5)), dice.randrange(digits + 1)
        value -= value % 10 ** (digits - shown)  # no more digits behind the point than are shown
        text = f"{Decimal(value).scaleb(-digits):.{shown}f}{unit}"
        assert parse(text) == value, text  # type: ignore[operator]


def test_formatted_values_can_be_parsed_again() -> None:
    dice = random.Random(1)
    for _ in range(_STEPS):
        value = dice.randrange(1, 10 ** dice.randrange(1, 12))
        assert parse_rate(format_rate(value)) == value
        assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize("text", ["1.5bit", "0.0005kbit", "33.3333333mbit"])
def test_a_part_of_a_bit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number of bits per second"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["9" * 400 + "mbit", "0." + "1" * 400 + "mbit", "1e9mbit", "-1mbit", ""])
def test_invalid_numbers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        parse_rate(text)


@pytest.mark.parametrize("rate", [8, 1_234_567, 9_999_999, 14_705_882, 4_100_000, 10**10])
def test_a_shaper_is_given_the_rate_that_it_can_hold(rate: int) -> None:
    """HTB counts whole bytes a second."""
    held = held_bps(rate)
    assert rate - 8 < held <= rate
    assert held % 8 == 0
    port = Port("rtsw1", "eth1", "", "ctsw1", "eth1", rate, 4200)
    for name, queues in (("htb", QueuePolicy()), ("ets", QueuePolicy(lossless=()))):
        text = "\n".join(DISCIPLINES[name].lines(port, queues))
        assert f"rate {held}bit" in text
        assert f"ceil {held}bit" in text


@pytest.mark.parametrize("words", [False, True])
def test_a_file_of_megabytes_has_the_values_of_a_small_one(words: bool) -> None:
    text = "a: 5\nb: no\nc: '5'\nd: 1.5\ne: true\nf:\n"
    reading = ReadOptions(max_bytes=1 << 20, words=words)
    small, large = (parse(each, "x.yml", reading) for each in (text, text + "# more\n" * (MAX_BYTES // 6)))
    assert small.data == large.data and small.marks == large.marks
    if words:
        assert [value.plain for value in large.data.values() if value is not None] == [True, True, False, True, True]
    else:
        assert large.data == {"a": 5, "b": "no", "c": "5", "d": 1.5, "e": True, "f": None}
