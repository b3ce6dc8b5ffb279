#!/usr/bin/env python3
"""Data-parallel training with PyTorch over gloo: ./inv launch --ranks 4 -- python3 traffic/programs/train.py.

A small network learns to tell classes of random points apart. After each step the gradients of all ranks are added, in
one all-reduce. Options: --steps N, --width N (units of the hidden layer: the gradient has about 4 x N x N bytes).
Everything that could differ between two runs has a seed, and each rank computes with one thread: the losses are the
same, bit for bit, with all ranks on one host (./inv launch --ranks 4 --per-host 4). Rank 0 prints them, and in the end
a line of JSON: `compute_s` and `step_s`, seconds of a step without and with the all-reduce, and `gradient_bytes`.
What to look at: step_s on the fabric and on one host. docs/programs.md predicts it. Needs PyTorch, without a GPU.
"""

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

CLASSES, POINTS = 10, 64  # points of each rank and step


def main():
    """Train, and print losses and times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=512)
    typed = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", init_method="env://")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # the same network on each rank
    width = typed.width
    net = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, CLASSES))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    centres = torch.randn(CLASSES, width)
    chance = torch.Generator().manual_seed(1 + rank)  # points of its own

    losses, computed, stepped = [], [], []
    dist.barrier()
    for _ in range(typed.steps):
        began = time.perf_counter()
        labels = torch.randint(CLASSES, (POINTS,), generator=chance)
        points = centres[labels] + torch.randn(POINTS, width, generator=chance)
        loss = nn.functional.cross_entropy(net(points), labels)
        optimizer.zero_grad()
        loss.backward()
        # One tensor for all gradients and the loss: one all-reduce a step.
        flat = torch.cat([each.grad.reshape(-1) for each in net.parameters()] + [loss.detach().reshape(1)])
        computed.append(time.perf_counter() - began)
        dist.all_reduce(flat)
        between = time.perf_counter()
        flat /= ranks
        at = 0
        for each in net.parameters():
            each.grad.copy_(flat[at : at + each.numel()].reshape(each.shape))
            at += each.numel()
        optimizer.step()
        computed[-1] += time.perf_counter() - between
        stepped.append(time.perf_counter() - began)
        losses.append(float(flat[-1]))
        if rank == 0:
            print(f"step {len(losses):3} loss {losses[-1]:.6f}", flush=True)

    # The slowest rank of each step is the one for which the others wait. The first step also opens connections.
    times = torch.tensor(computed[1:] or computed)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if rank == 0:
        figures = {
            "losses": [each.hex() for each in losses],
            "compute_s": float(times.mean()),
            "step_s": sum(stepped[1:] or stepped) / len(stepped[1:] or stepped),
            "gradient_bytes": flat.numel() * flat.element_size(),
        }
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit("start it with ./inv launch, or with torchrun")
    main()
