"""MSCCL XML: programs of a user run as any other collective; wrong ones are refused before anything starts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import files_of, load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.traffic.collectives import Pattern, find_pattern
from heddle.traffic.options import RunOptions, describe
from heddle.traffic.placement import place
from heddle.traffic.plan import bound_steps, build_plan
from tests.answers import Answers
from tests.unit.test_collectives import Exchange, exchanged

Steps = Sequence[tuple[object, ...]]  # type, source, destination, and more: `("s", "i0", "o0", 1, (2, 0))`


def step(number: int, kind: str, src: str = "i0", dst: str = "o0", count: int = 1, after: object = None) -> str:
    """One step. All of them signal their end."""
    tb, other = after if isinstance(after, tuple) else (-1, -1)
    return (
        f'<step s="{number}" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}" '
        f'cnt="{count if kind != "nop" else 0}" depid="{tb}" deps="{other}" hasdep="1"/>'
    )


def block(number: int, peers: tuple[int, int], steps: Steps, channel: int = 0) -> str:
    """A thread block. peers: to which it sends, and from which it receives."""
    lines = [step(at, *each) for at, each in enumerate(steps)]  # type: ignore[arg-type]
    return "\n".join([f'<tb id="{number}" send="{peers[0]}" recv="{peers[1]}" chan="{channel}">', *lines, "</tb>"])


def program(
    coll: str, chunks: int, gpus: Sequence[tuple[tuple[int, int, int], Sequence[str]]], *, place: int = 0
) -> str:
    """A file. gpus: chunks of the three buffers, and thread blocks. place: in place."""
    lines = [
        f'<gpu id="{at}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">\n' + "\n".join(blocks) + "\n</gpu>"
        for at, ((i, o, s), blocks) in enumerate(gpus)
    ]
    head = f'<algo name="t" proto="Simple" nchannels="1" nchunksperloop="{chunks}" ngpus="{len(gpus)}" coll="{coll}"'
    return "\n".join([f'{head} inplace="{place}" outofplace="{1 - place}">', *lines, "</algo>"])


def ring(ranks: int) -> str:
    """All-reduce in a ring: reduced and sent on, then copied and sent on, as RCCL's unit tests have it."""
    gpus = []
    for rank in range(ranks):
        own: list[tuple[object, ...]] = [("s", f"i{rank}")]
        own += [("rrs", f"i{(rank - 1 - s) % ranks}") for s in range(ranks - 2)]
        own += [("rrcs", f"i{(rank + 1) % ranks}", f"o{(rank + 1) % ranks}")]
        own += [("rcs", "i0", f"o{(rank - s) % ranks}") for s in range(ranks - 2)]
        own += [("r", "i0", f"o{(rank + 2) % ranks}")]
        gpus.append(((ranks, ranks, 0), [block(0, ((rank + 1) % ranks, (rank - 1) % ranks), own)]))
    return program("allreduce", ranks, gpus)


def all_pairs(ranks: int) -> str:
    """All-reduce in place: each GPU gets its chunk of all others into scratch, reduces it, and sends it to all."""
    gpus = []
    for rank in range(ranks):
        others = [other for other in range(ranks) if other != rank]
        blocks = [
            block(at, (other, other), [
                ("s", f"i{other}"), ("r", "i0", f"s{at}"),
                ("nop", "i0", "o0", 0, (len(others), len(others) - 1)), ("s", f"i{rank}"), ("r", "i0", f"i{other}"),
            ])
            for at, other in enumerate(others)
        ]  # fmt: skip
        own = [("re", f"s{at}", f"i{rank}", 1, (at, 1)) for at in range(len(others))]
        gpus.append(((ranks, 0, ranks - 1), [*blocks, block(len(others), (-1, -1), own)]))
    return program("allreduce", ranks, gpus, place=1)


def all_to_all(ranks: int) -> str:
    """Two chunks for each GPU; its own are copied."""
    gpus = []
    for rank in range(ranks):
        others = [other for other in range(ranks) if other != rank]
        blocks = [
            block(at, (other, other), [("s", f"i{2 * other}", "o0", 2), ("r", "i0", f"o{2 * other}", 2)])
            for at, other in enumerate(others)
        ]
        own = block(ranks, (-1, -1), [("cpy", f"i{2 * rank}", f"o{2 * rank}", 2)])
        gpus.append(((2 * ranks, 2 * ranks, 0), [*blocks, own]))
    return program("alltoall", 2 * ranks, gpus)


def gather_in_place(ranks: int) -> str:
    """All-gather in a ring, in place: the input is a part of the output."""
    gpus = []
    for rank in range(ranks):
        steps = [("s", "i0"), *(("rcs", "i0", f"o{(rank - 1 - s) % ranks}") for s in range(ranks - 2))]
        steps.append(("r", "i0", f"o{(rank + 1) % ranks}"))
        gpus.append(((1, ranks, 0), [block(0, ((rank + 1) % ranks, (rank - 1) % ranks), steps)]))
    return program("allgather", ranks, gpus, place=1)


PROGRAMS = {"ring": ring, "all-pairs": all_pairs, "all-to-all": all_to_all, "all-gather": gather_in_place}


def loaded(path: Path, text: str, **more: str) -> Pattern:
    """The pattern of a file, bound."""
    file = path / "p.xml"
    file.write_text(text)
    return find_pattern("msccl", msccl=str(file), **more).bound((), ())


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_results_are_right_in_any_order_of_messages(name: str, ranks: int, tmp_path: Path) -> None:
    pattern = loaded(tmp_path, PROGRAMS[name](ranks))
    for seed in range(4):
        dice = random.Random(seed)
        assert exchanged(pattern, ranks, lambda to, dice=dice: dice.randrange(len(to))).wrong() == [0] * ranks  # type: ignore[misc]
    exchange = exchanged(pattern, ranks, lambda to: 0, lost=1)
    assert sum(exchange.wrong()) > 0
    assert [pair for pair in pattern.peers(ranks).tolist() if pair[0] == pair[1]] == []


def test_reductions_are_those_of_the_run_and_an_average_is_refused(tmp_path: Path) -> None:
    for op in ("max", "min"):
        assert exchanged(loaded(tmp_path, ring(4), operation=op), 4, lambda to: 0).wrong() == [0] * 4
    assert loaded(tmp_path, ring(4), operation="avg").unfit(4) == "has no average; use --op sum"
    assert loaded(tmp_path, all_to_all(4)).redop == "none"
    assert loaded(tmp_path, ring(4)).unfit(8) == "is a program for 4 ranks, not 8; use --ranks 4"


def test_credits_are_those_that_the_operations_give(tmp_path: Path) -> None:
    for make in PROGRAMS.values():
        pattern = loaded(tmp_path, make(4))
        assert pattern.credits(4).tolist() == Pattern.credits(pattern, 4).tolist()
        assert pattern.routes(4).tolist() == Pattern.routes(pattern, 4).tolist()


def test_a_plan_has_the_program_and_needs_the_file_no_more(tmp_path: Path) -> None:
    file = tmp_path / "p.xml"
    file.write_text(ring(4))
    (tmp_path / "w.yml").write_text("jobs:\n  a: {msccl: p.xml, ranks: 4}\n")
    assert files_of(str(tmp_path / "w.yml")) == [str(tmp_path / "w.yml"), str(file)]
    (job,) = load_workload(str(tmp_path / "w.yml")).workload.jobs
    plan = build_plan(load_fabric("tiny").fabric, job.options)
    file.unlink()
    again = RunOptions("msccl", "xml", parameters=plan.options.parameters).pattern
    assert again.routes(4).tolist() == [[0, 1], [1, 2], [2, 3], [3, 0]]
    assert again.typed == f"--msccl {file}"
    assert f"file: {file}" in describe(plan.options)


def test_a_program_is_a_step_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "p.xml").write_text(all_pairs(4))
    step = "{collective: msccl, msccl: p.xml, size: 4K}"
    (tmp_path / "w.yml").write_text(f"jobs:\n  a:\n    ranks: 4\n    steps: [{step}, {{compute: 1us}}, {step}]\n")
    (job,) = load_workload(str(tmp_path / "w.yml")).workload.jobs
    fabric = load_fabric("tiny").fabric
    options = bound_steps(job.options, place(fabric, job.options.placement, job.options.ranks), fabric.policy.k)
    exchange = Exchange(replace(options, iters=2, warmup=1), options.pattern, 4, 0)
    exchange.run(lambda to: 0)
    assert exchange.wrong() == [0] * 4


def changed(text: str, old: str, new: str) -> str:
    """The program with the first step that matches changed."""
    found = text.replace(old, new, 1)
    assert found != text
    return found


def test_wrong_programs_are_refused_with_gpu_block_and_step(tmp_path: Path, answers: Answers) -> None:
    made = {"ring": ring, "all_to_all": all_to_all, "all_pairs": all_pairs}

    def load(program: str, *change: str) -> Pattern:
        """A program of three ranks with a change, or a text."""
        return loaded(tmp_path, changed(made[program](3), *change) if change else program)

    answers(load)
    for text, said in (
        (changed(all_pairs(3), 'hasdep="1"', 'hasdep="0"').replace('deps="1"', 'deps="0"'), "so it signals nothing"),
        (ring(3)[:-20], r"p\.xml:\d+  the file is not well-formed XML: "),
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + ring(3), r"p\.xml:1  DOCTYPE is refused"),
    ):
        with pytest.raises(InputError, match=said):
            loaded(tmp_path, text)


def test_a_file_is_needed_and_must_be_readable(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--collective msccl needs the XML file of a program"):
        find_pattern("msccl").bound((), ())
    with pytest.raises(InputError, match=r"--msccl nosuch\.xml cannot be read: No such file"):
        find_pattern("msccl", msccl="nosuch.xml").bound((), ())
    (tmp_path / "large.xml").write_bytes(b" " * (8 << 20) + b"<algo/>")
    with pytest.raises(InputError, match="larger than 8192 KiB"):
        find_pattern("msccl", msccl=str(tmp_path / "large.xml")).bound((), ())
