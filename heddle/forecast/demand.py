"""A plan on a fabric: the places of the ranks, the pairs with traffic, and the bytes of each QP.

In:  Fabric, PaperPlan. Out: Traffic, columns only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heddle.base.arrays import U32
from heddle.base.problems import InputError, Problem
from heddle.fabric.model import Fabric
from heddle.forecast.columns import Connections, addresses, connect
from heddle.forecast.matrix import check_memory, matrix_of
from heddle.forecast.planfile import PaperPlan
from heddle.forecast.volume import Volume, cutting, of_lengths, of_pattern
from heddle.traffic.collectives import Pattern, find_pattern
from heddle.traffic.communicators import Communicators, communicators_of, describe
from heddle.traffic.endpoint import Endpoint
from heddle.traffic.options import ELEMENT_BYTES, RunOptions
from heddle.traffic.plan import place, smallest_size


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
    count = pattern.whole(ranks, plan.spec.size // ELEMENT_BYTES)
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
