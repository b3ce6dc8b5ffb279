"""A plan on a fabric: the places of the ranks, the pairs with traffic, and the bytes of each QP.

In:  Fabric, PaperPlan, with a collective or a traffic matrix: by name and number, or a file with src,dst,bytes.
Out: Traffic, columns only; of a matrix in plan order (by sender, then receiver).
`check_memory` runs before anything large is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from heddle.base.arrays import I64, U32
from heddle.base.files import open_regular, real
from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.base.units import parse_size
from heddle.fabric.model import Fabric
from heddle.host.capacity import free_bytes
from heddle.offline.columns import (
    BATCH,
    CONNECTION_BYTES,
    FLOW_BYTES,
    LENGTH_BYTES,
    Connections,
    Volume,
    addresses,
    connect,
    cutting,
    of_lengths,
    of_pattern,
)
from heddle.offline.planfile import MOST_BYTES, PaperPlan
from heddle.traffic.collectives import Pattern, find_pattern
from heddle.traffic.collectives.permutation import cycle
from heddle.traffic.communicators import Communicators, communicators_of, describe
from heddle.traffic.flow import Endpoint
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import place, smallest_size

COLUMNS: Final = ("src", "dst", "bytes")
_MOST_PROBLEMS: Final = 20  # per file: an error in a column is in every row
_MOST_NAMES: Final = 4096  # names to compare with an unknown word
_ROW_BYTES: Final = 12  # of a file: the minimum of a row
_READ_BYTES: Final = 250  # memory per row while the file is read


@dataclass(frozen=True)
class Matrix:
    """Rows by sender, then receiver; no empty row, no rank to itself, no pair twice. Bytes are payload."""

    src: I64
    dst: I64
    bytes: I64


def check_memory(plan: PaperPlan, ranks: int, connections: int, lengths: int = 1) -> None:
    """InputError when the connections do not fit in memory; called before they are made. lengths: different ones."""
    each = plan.spec.qps * plan.spec.entropy
    need = connections * CONNECTION_BYTES + min(connections * each, BATCH) * FLOW_BYTES + lengths * each * LENGTH_BYTES
    free = free_bytes()
    if need > free:
        size = f"{need / 1e9:.0f} GB, but {free / 1e9:.1f} GB are free"
        why = f"makes {connections:,} connections of {ranks:,} ranks, which need {size}"
        fit = int((free / CONNECTION_BYTES) ** 0.5 * 0.9)
        key = "matrix" if plan.spec.matrix is not None else "collective"
        raise InputError(plan.problem(key, why, f"use fewer ranks, as ranks: {min(fit, ranks - 1)}"))


def matrix_of(plan: PaperPlan, endpoints: Sequence[Endpoint], communicators: Communicators) -> Matrix:
    """The matrix of a plan for these endpoints. InputError for rows that do not fit them.

    communicators: each uses the named matrix among its own ranks; a file names ranks of the whole plan.
    """
    if plan.spec.file is not None:
        return _sorted(*_read(plan, endpoints))
    members = np.array(communicators)
    src, dst = _named(plan, *members.shape)
    src, dst = members[:, src].ravel(), members[:, dst].ravel()
    return _sorted(src, dst, np.full(len(src), plan.spec.size, dtype=np.int64))


def _named(plan: PaperPlan, many: int, ranks: int) -> tuple[I64, I64]:
    """Senders and receivers of a named matrix among `ranks` ranks. many: the number of communicators."""
    name, number = plan.spec.named
    if name == "all-to-all":
        check_memory(plan, many * ranks, many * ranks * (ranks - 1))
        src = np.repeat(np.arange(ranks), ranks - 1)
        dst = (src + np.tile(np.arange(1, ranks), ranks)) % ranks
    elif name == "permutation":
        src, dst = np.arange(ranks), np.array(cycle(ranks, number or 0), dtype=np.int64)
    elif name == "shift":
        if (number or 0) % ranks == 0:
            raise InputError(plan.problem("matrix", f"makes each of the {ranks} ranks send to itself", "try shift:1"))
        src = np.arange(ranks)
        dst = (src + (number or 0)) % ranks
    else:
        if (number or 0) >= ranks:
            why = f"needs {(number or 0) + 1} ranks, one of which receives, but there are {ranks}"
            raise InputError(plan.problem("matrix", why, f"try incast:{ranks - 1}"))
        src = np.arange(1, (number or 0) + 1)
        dst = np.zeros_like(src)
    return src, dst


def _sorted(src: I64, dst: I64, amount: I64) -> Matrix:
    order = np.lexsort((dst, src))
    src, dst, amount = src[order], dst[order], amount[order]
    first = np.flatnonzero(np.concatenate([[True], (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])]))
    summed = np.add.reduceat(amount, first)
    there = summed > 0
    return Matrix(src[first][there], dst[first][there], summed[there])


def _read(plan: PaperPlan, endpoints: Sequence[Endpoint]) -> tuple[I64, I64, I64]:
    name = plan.matrix_file or ""
    path = real(name)
    try:
        rows = path.stat().st_size // _ROW_BYTES
        if rows * _READ_BYTES > free_bytes():
            why = (
                f"has up to {rows:,} rows: {rows * _READ_BYTES / 1e9:.0f} GB, but {free_bytes() / 1e9:.1f} GB are free"
            )
            raise InputError(Problem("", name, why, "sum up rows, or use a part of them"))
        with open_regular(path) as file:
            text = file.read().decode("utf-8-sig")
    except FileNotFoundError:
        hint = "check the path" if name == plan.spec.file else "write the path relative to the plan's directory"
        raise InputError(plan.problem("matrix", f"does not exist: {name}", hint)) from None
    except IsADirectoryError:
        raise InputError(Problem("", name, "is a directory", "name the .csv file in it")) from None
    except UnicodeDecodeError:
        raise InputError(Problem(name, "the file", "is not UTF-8 text", "save it as UTF-8")) from None
    except OSError as error:
        raise InputError(Problem("", name, f"cannot be read: {error.strerror}")) from None
    return _Rows(name, endpoints).read(text.splitlines())


def _says(line: str) -> bool:
    """False for an empty line and for a comment, which begins with #."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


class _Rows:
    """Reads the lines of a matrix, and collects their errors."""

    def __init__(self, name: str, endpoints: Sequence[Endpoint]) -> None:
        self._name = name
        self._ranks = len(endpoints)
        self._problems = Problems()
        self._by_name: dict[str, int] = {e.nic: e.rank for e in endpoints}
        self._several: set[str] = set()
        hosts: dict[str, int] = {}
        for each in endpoints:
            if each.host in hosts:
                self._several.add(each.host)
            hosts.setdefault(each.host, each.rank)
        self._hosts = tuple(hosts)
        self._by_name |= hosts

    def read(self, lines: Sequence[str]) -> tuple[I64, I64, I64]:
        """Columns of ranks and bytes. InputError with the first problems, and the number of the others."""
        at = next((i for i, line in enumerate(lines) if _says(line)), None)
        head = tuple(word.strip().lower() for word in lines[at].split(",")) if at is not None else ()
        if sorted(head) != sorted(COLUMNS) or at is None:
            why = f"has the columns {', '.join(head) or '(none)'}"
            raise InputError(
                Problem(f"{self._name}:{(at or 0) + 1}", "the first line", why, f"write {','.join(COLUMNS)}")
            )
        rows = list(self._rows(lines, at + 1, [head.index(column) for column in COLUMNS]))
        hidden = len(self._problems.found) - _MOST_PROBLEMS
        if hidden > 0:
            del self._problems.found[_MOST_PROBLEMS:]
            self._problems.add(where=self._name, what="the file", why=f"has {hidden} more problems like these")
        self._problems.raise_if_any()
        table = np.array(rows, dtype=np.int64).reshape(len(rows), 3)
        if not table[:, 2].any():
            raise InputError(
                Problem(self._name, "the matrix", "sends nothing", "write rows as 0,1,1M: from, to, bytes")
            )
        return table[:, 0], table[:, 1], table[:, 2]

    def _rows(self, lines: Sequence[str], start: int, order: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        for number, line in enumerate(lines[start:], start + 1):
            if not _says(line):
                continue
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) != len(COLUMNS):
                self._wrong(
                    number, line.strip()[:60], f"has {len(cells)} values", "write rows as 0,1,1M: from, to, bytes"
                )
                continue
            src, dst, amount = (cells[i] for i in order)
            row = self._rank(number, "src", src), self._rank(number, "dst", dst), self._bytes(number, amount)
            if row[0] == row[1] and row[0] >= 0:
                self._wrong(number, f"{src} to {dst}", "has one NIC at both ends", "remove the row")
            yield row

    def _wrong(self, line: int, what: str, why: str, hint: str = "") -> None:
        self._problems.add(where=f"{self._name}:{line}", what=what, why=why, hint=hint)

    def _rank(self, line: int, column: str, text: str) -> int:
        if text.isdecimal() and text.isascii():
            if int(text) < self._ranks:
                return int(text)
            self._wrong(line, f"{column}: {text}", "is not a rank of this plan", f"ranks are 0 to {self._ranks - 1}")
        elif text in self._several:
            hint = f"write one of its NICs, as {text}:eth1, or a rank"
            self._wrong(line, f"{column}: {text}", "is a host with several ranks", hint)
        elif text in self._by_name:
            return self._by_name[text]
        else:
            hint = (
                did_you_mean(text, self._hosts)
                if len(self._hosts) <= _MOST_NAMES
                else "write a host as host7, a rank as 6"
            )
            self._wrong(line, f"{column}: {text or 'nothing'}", "is neither a rank nor a host with a rank", hint)
        return -1

    def _bytes(self, line: int, text: str) -> int:
        if text.isdecimal() and text.isascii() and len(text) < 14:
            value = int(text)
        else:
            try:
                value = parse_size(text)
            except ValueError as error:
                why, _, hint = str(error).partition("; ")
                why = "is below 0" if text.startswith("-") else why
                self._wrong(line, f"bytes: {text or 'nothing'}", why, hint)
                return 0
        if value > MOST_BYTES:
            self._wrong(line, f"bytes: {text}", "is above 1 TiB")
        return value


@dataclass(frozen=True)
class Traffic:
    """The traffic of a plan. address: by rank, as in FlowArrays; volume: by kind of connection and flow.

    split: the communicators in words, if there are several.
    """

    plan: PaperPlan
    endpoints: Sequence[Endpoint]
    address: U32
    connections: Connections
    volume: Volume
    split: str = ""


def traffic_of(fabric: Fabric, plan: PaperPlan) -> Traffic:
    """Place the ranks and open the QPs. InputError if the fabric has too few NICs, or the machine too little memory."""
    spec = plan.spec
    endpoints = _placed(fabric, plan)
    cut = cutting(fabric, spec.qps, spec.qp_mode, spec.chunk, spec.transport, spec.entropy)
    groups = () if spec.file is not None else _split(fabric, plan, endpoints)
    if spec.matrix is not None:
        matrix = matrix_of(plan, endpoints, groups)
        lengths, kind = np.unique(matrix.bytes, return_inverse=True)
        check_memory(plan, len(endpoints), len(matrix.src), len(lengths))
        volume = of_lengths(lengths, cut)
        src, dst, kinds = matrix.src, matrix.dst, kind.ravel().astype(np.int32)
    else:
        pattern = find_pattern(*spec.pattern)
        communicators = np.array(groups)
        many, size = communicators.shape
        check_memory(plan, len(endpoints), many * pattern.connections(size))
        pairs, kinds, volume = of_pattern(pattern, size, _count(plan, pattern, size), cut)
        src, dst = communicators[:, pairs].reshape(-1, 2).T
        kinds = np.tile(kinds, many)
    connections = connect(endpoints, src, dst, kinds, spec.qps, spec.source_ports, spec.entropy)
    return Traffic(plan, endpoints, addresses(endpoints), connections, volume, describe(fabric, endpoints, groups))


def _count(plan: PaperPlan, pattern: Pattern, ranks: int) -> int:
    """Elements of a rank's array that are sent, rounded down as in a run; InputError if this gives 0."""
    count = pattern.whole(ranks, plan.spec.size // pattern.element_bytes)
    if count == 0:
        why = f"is rounded down to 0 bytes by {pattern.collective} over {ranks} ranks, as in nccl-tests"
        hint = f"use {smallest_size(pattern, ranks)} or more, or fewer ranks"
        raise InputError(Problem(plan.document.where(("size",)), f"size: {plan.spec.size}", why, hint))
    return count


def _placed(fabric: Fabric, plan: PaperPlan) -> tuple[Endpoint, ...]:
    """The ranks, placed as in a run. Errors name the plan's keys instead of a run's flags."""
    try:
        return place(fabric, RunOptions(ranks=plan.spec.ranks, placement=plan.spec.placement))
    except InputError as error:
        raise InputError(*(_in_plan(plan, problem) for problem in error.problems)) from None


def _split(fabric: Fabric, plan: PaperPlan, endpoints: Sequence[Endpoint]) -> Communicators:
    """The communicators, split as in a run."""
    try:
        return communicators_of(fabric, endpoints, plan.spec.split)
    except InputError as error:
        raise InputError(*(_in_plan(plan, problem) for problem in error.problems)) from None


def _in_plan(plan: PaperPlan, problem: Problem) -> Problem:
    for key in ("ranks", "placement", "split"):
        flag, value = f"--{key} ", problem.what.removeprefix(f"--{key} ")
        if problem.what.startswith(flag):
            where = plan.document.where((key,))
            return replace(problem, where=where, what=f"{key}: {value}", hint=problem.hint.replace(flag, f"{key}: "))
    return problem
