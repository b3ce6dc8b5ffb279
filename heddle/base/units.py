"""Sizes and rates as people write them: `1MB`, `64K`, `100mbit`, `4200`.

Sizes: K, M, G are powers of two, as in nccl-tests (`64K` is 65,536); KB, MB, GB are powers of ten, KiB, MiB, GiB powers
of two. Rates are bits per second with powers of ten, as tc writes them (`100mbit`, `400gbit`). Durations
are nanoseconds (`500us`, `20ms`). Shares of packets are fractions, percent or numbers up to 1 (`1/256`, `0.5%`).
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

WHOLE_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,300}")
_NUMBER: Final = re.compile(r"^\s*([0-9]{1,300}(?:\.[0-9]{1,300})?)\s*([a-zA-Z/]*)\s*$")
_SHARE: Final = re.compile(r"^\s*([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e-[0-9]{1,2})?)\s*(?:/\s*([0-9]{1,10})|(%))?\s*$")
_LEAST_SHARE: Final = Fraction(1, 10**9)  # a program draws 32 bits
_SIZE: Final = {
    "": 1, "b": 1,
    "k": 1 << 10, "m": 1 << 20, "g": 1 << 30,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
    "kb": 10**3, "mb": 10**6, "gb": 10**9,
}  # fmt: skip
_RATE: Final = {
    "bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9,
    "bit/s": 1, "kbit/s": 10**3, "mbit/s": 10**6, "gbit/s": 10**9,
}  # fmt: skip
_DURATION: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}

# The reference of a fabric's scale: a 400 Gb/s NIC.
_HARDWARE_BPS: Final = 400 * 10**9


def scale_of(host_bps: int) -> int:
    """k of a fabric with this rate of host links: how many times slower it is than the hardware."""
    return max(1, round(_HARDWARE_BPS / host_bps))


def emulated_words(k: int) -> str:
    """The meaning of an emulated figure, in one sentence. All output that prints k uses this sentence.

    A figure times k is not a hardware figure: latencies of hosts, of kernel forwarding and of PFC are not scaled.
    """
    return f"rates are 1/{k} of the hardware's; compare ratios, not GB/s with hardware"


def parse_size(text: str | int) -> int:
    """Bytes in `text`; ValueError with the reason and a hint."""
    return _parse(text, _SIZE, "a size", "write bytes as 4200, 64K, 1MB or 2MiB", whole="bytes", bare=True)


def parse_rate(text: str | int) -> int:
    """Bits per second in `text`; ValueError with the reason and a hint."""
    return _parse(text, _RATE, "a rate", "write a rate as 100mbit or 1gbit", whole="bits per second")


def parse_duration(text: str | int) -> int:
    """Nanoseconds in `text`; ValueError with the reason and a hint."""
    return _parse(text, _DURATION, "a duration", "write a duration as 500us or 20ms", whole="nanoseconds")


def parse_share(text: str | float) -> float:
    """A share of packets, from 0 to 1: `1/256`, `0.5%` or `0.005`; ValueError with the reason and a hint."""
    hint = "write a share as 1/256, 0.5% or 0.005"
    match = None if isinstance(text, bool) else _SHARE.match(str(text))
    if match is None:
        raise ValueError(f"is not a share of packets; {hint}")
    number, below, percent = match.groups()
    if below is not None and int(below) == 0:
        raise ValueError(f"divides by 0; {hint}")
    value = Fraction(number) / (int(below) if below is not None else 100 if percent else 1)
    if value > 1:
        raise ValueError(f"is more than all packets; {hint}")
    if 0 < value < _LEAST_SHARE:
        raise ValueError(f"is less than 1 packet in {_LEAST_SHARE.denominator:,}; {hint}")
    return float(value)


def format_share(share: float) -> str:
    """A share of packets: `1/256` where it is close to such a fraction, else in percent."""
    count = round(1 / share) if share else 0
    if count > 2 and abs(share * count - 1) < 1e-6:
        return f"1/{count}"
    return f"{100 * share:.4g}%"


def _parse(text: str | int, units: dict[str, int], kind: str, hint: str, *, whole: str, bare: bool = False) -> int:
    match = None if isinstance(text, bool) else _NUMBER.match(str(text))
    if match is None:
        raise ValueError(f"is not {kind}; {hint}")
    number, unit = match.groups()
    if unit == "" and not bare:
        raise ValueError(f"has no unit; {hint}")
    factor = units.get(unit.lower())
    if factor is None:
        raise ValueError(f"has the unit {unit}, which is not valid for {kind}; {hint}")
    # A fraction: a float cannot hold 33.3 exactly, and 33.3 * 10**6 would not be whole.
    value = Fraction(number) * factor
    if value.denominator != 1:
        raise ValueError(f"is not a whole number of {whole}; {hint}")
    return value.numerator


def format_size(count: int) -> str:
    """Bytes for people: `4 KiB`, `1.5 MiB`."""
    for name, unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} B"


def format_bytes(count: float) -> str:
    """Bytes in powers of ten, as for queues in a fabric file, with three digits: `812 B`, `60 KB`, `1.24 GB`."""
    for name, unit in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= unit:
            return f"{count / unit:.3g} {name}" if count < 1000 * unit else f"{count / unit:.0f} {name}"
    return f"{count:.0f} B" if count else "0"


def format_rate(bps: int) -> str:
    """Bits per second as tc writes them: `100mbit`."""
    for name, unit in (("gbit", 10**9), ("mbit", 10**6), ("kbit", 10**3)):
        if bps >= unit and bps % unit == 0:
            return f"{bps // unit}{name}"
    return f"{bps}bit"


def format_duration(ns: int) -> str:
    """Nanoseconds in the largest unit that gives a whole number: `20ms`."""
    for name, unit in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= unit and ns % unit == 0:
            return f"{ns // unit}{name}"
    return f"{ns}ns"


def shown(size: int) -> str:
    """Bytes as in a fabric file: `60KB`, `1MB`, `4214`."""
    for unit, factor in (("MB", 10**6), ("KB", 10**3)):
        if size >= factor and size * 10 % factor == 0:
            return f"{size / factor:g}{unit}"
    return str(size)


def round_up(size: int) -> str:
    """The size rounded up to two significant digits."""
    factor: int = 10 ** max(0, len(str(size)) - 2)
    return shown(-(-size // factor) * factor)


def round_down(size: int) -> str:
    """The size rounded down to two significant digits."""
    factor: int = 10 ** max(0, len(str(size)) - 2)
    return shown(size // factor * factor)
