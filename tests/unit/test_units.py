"""Sizes, rates and durations are read as the decimal numbers that people write, never as binary fractions."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest

from heddle.base.units import format_duration, format_rate, parse_duration, parse_rate, parse_size
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Port
from heddle.fabric.policy import QueuePolicy
from heddle.switch.queues.classes import held_bps
from heddle.switch.queues.disciplines import DISCIPLINES

_STEPS = 400  # random values of each unit


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        ("33.3mbit", 33_300_000),
        ("4.1mbit", 4_100_000),
        ("16.1mbit", 16_100_000),
        ("0.1gbit", 10**8),
        ("1.000001mbit", 1_000_001),
        ("2.3kbit", 2_300),
        ("9.999999999gbit/s", 9_999_999_999),
    ],
)
def test_a_rate_with_a_decimal_point_is_the_number_that_is_written(text: str, bps: int) -> None:
    assert parse_rate(text) == bps


@pytest.mark.parametrize(("text", "size"), [("4.1MB", 4_100_000), ("16.1KB", 16_100), ("0.1GB", 10**8), ("1.5K", 1536)])
def test_a_size_is_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "ns"), [("4.1us", 4_100), ("33.3ms", 33_300_000), ("0.001us", 1), ("1.1s", 11 * 10**8)]
)
def test_a_duration_is_parsed(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


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


def test_a_fabric_file_takes_decimal_rates() -> None:
    fabric = load_fabric("tiny", overrides=["link.host=33.3mbit", "link.fabric=16.1mbit"]).fabric
    assert {link.rate_bps for link in fabric.links} == {33_300_000, 16_100_000}


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
