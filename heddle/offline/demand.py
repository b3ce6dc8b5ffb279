"""A plan on a fabric: the places of the ranks, the pairs with traffic, and the bytes of each QP.

In:  Fabric, PaperPlan, with a collective or a traffic matrix: by name and number, or a file with src,dst,bytes.
Out: Traffic, columns only; of a matrix in plan order (by sender, then receiver).
`check_memory` runs before anything large is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heddle.base.arrays import I64, U32
from heddle.base.problems import InputError, Problem
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
from heddle.offline.planfile import PaperPlan
from heddle.traffic.collectives import Pattern, find_pattern
from heddle.traffic.communicators import Communicators, communicators_of, describe
from heddle.traffic.flow import Endpoint
from heddle.traffic.matrixrows import bound_rows, cells_of, summed, unfit
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import place, smallest_size


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
        return Matrix(*cells_of(_bound(plan, plan.matrix_file or "", endpoints), len(endpoints)))
    members = np.array(communicators)
    many, ranks = members.shape
    bound = _bound(plan, plan.spec.matrix or "", endpoints)
    if found := unfit(bound, ranks):
        raise InputError(plan.problem("matrix", *found.split("; ")))
    if plan.spec.named[0] == "all-to-all":
        check_memory(plan, many * ranks, many * ranks * (ranks - 1))
    src, dst, amount = cells_of(bound, ranks)
    return Matrix(*summed(members[:, src].ravel(), members[:, dst].ravel(), np.tile(amount, many)))


def _bound(plan: PaperPlan, typed: str, endpoints: Sequence[Endpoint]) -> str:
    try:
        return bound_rows(typed, endpoints, (plan.spec.size,))
    except InputError as error:
        raise InputError(*(_in_plan(plan, problem) for problem in error.problems)) from None


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
    for key in ("ranks", "placement", "split", "matrix"):
        flag, value = f"--{key} ", problem.what.removeprefix(f"--{key} ")
        if problem.what.startswith(flag):
            where = plan.document.where((key,))
            return replace(problem, where=where, what=f"{key}: {value}", hint=problem.hint.replace(flag, f"{key}: "))
    return problem
