"""UCX, on which MPI libraries and NIXL send, over soft-RoCE: its queue pairs, which Heddle does not number."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing

import pytest

from heddle.base.ethernet import CLASSES
from heddle.kernel import rdma
from heddle.lab.lab import Lab
from heddle.switch.queues.cells import LabQueues
from tests.machine import slower
from tests.typed import typed

_WHY = rdma.obstacle()
pytestmark = [
    pytest.mark.skipif(_WHY is not None, reason=f"needs soft-RoCE in namespaces: {_WHY.why if _WHY else ''}"),
    pytest.mark.skipif(shutil.which("ucx_perftest") is None, reason="needs ucx_perftest, of Debian's ucx-utils"),
    pytest.mark.deep,
]

LOSSLESS = 3
COUNT, SIZE = 40, 65536
# Rank 0 is the server. The client tries again until it listens. UCX connects its queue pairs over TCP: over soft-RoCE's
# datagrams, as with UCX_TLS=rc, its connections time out. -P 0: not as a program of MPI.
SCRIPT = f"""
test="ucx_perftest -P 0 -t tag_bw -s {SIZE} -n {COUNT} -w 1"
[ $RANK = 0 ] && exec $test
for try in $(seq 60); do $test $MASTER_ADDR && exit; sleep 1; done; exit 1
"""


def test_ucx_sends_on_reliable_connections_over_soft_roce(borrow: Callable[..., Lab]) -> None:
    lab = borrow("tiny", *slower(100_000_000))
    words = ["--ranks", "2", "--placement", "host1,host3", "--time-limit", "200s", "--lab", lab.name, "--rdma"]
    with closing(LabQueues.pinned(lab.fabric)) as live:
        # The lossless class at the ports to host1 and host3.
        rows = [live.ids[switch, "eth3"] * CLASSES + LOSSLESS for switch in ("rtsw1", "rtsw2")]
        before = live.cells["out_bytes"][rows].astype(int)
        done = typed("launch", *words, "--format", "json", "--", "sh", "-c", SCRIPT)
        to_server, to_client = live.cells["out_bytes"][rows].astype(int) - before
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    document = json.loads(done.stdout)
    assert document["exit_codes"] == [0, 0]
    # Only its queue pairs have that traffic class: its TCP connections are best effort.
    assert to_server > SIZE * COUNT > to_client, (to_server, to_client, document)
    assert document["agree"], document
    assert not rdma.links(rdma.prefix_of(lab.name), [handle.netns for handle in lab.handles().values()])
