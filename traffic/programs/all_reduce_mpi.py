#!/usr/bin/env python3
"""An all-reduce of MPI, checked: start it with traffic/programs/mpi.sh. Needs mpi4py and numpy. Argument: KIB."""

import sys
import time

import numpy
from mpi4py import MPI


def main(kib=1024, turns=5):
    """Add arrays of whole numbers, so that the order of additions makes no difference."""
    world = MPI.COMM_WORLD
    rank, ranks, count = world.Get_rank(), world.Get_size(), kib * 128
    mine, total = numpy.arange(count, dtype=float) + rank, numpy.empty(count)
    world.Allreduce(mine, total)  # it opens the connections
    began = time.monotonic()
    for _ in range(turns):
        world.Allreduce(mine, total)
    seconds = (time.monotonic() - began) / turns
    wrong = int((total != ranks * numpy.arange(count) + sum(range(ranks))).sum())
    host = MPI.Get_processor_name()
    print(f"rank {rank} of {ranks} on {host}: {kib} KiB in {seconds:.4f} s, {wrong} wrong", flush=True)
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
