"""A queue pair of soft-RoCE by rdma-core's own Python bindings. For the system's Python, and without code of Heddle.

It prints its number and its memory as a line of JSON, takes a WRITE and a SEND with immediate, and then requests the
same and a READ. The last line has what it received.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any

import pyverbs.enums as e  # type: ignore[import-not-found]
from pyverbs.addr import GID, AHAttr, GlobalRoute  # type: ignore[import-not-found]
from pyverbs.cq import CQ  # type: ignore[import-not-found]
from pyverbs.device import Context  # type: ignore[import-not-found]
from pyverbs.mr import MR  # type: ignore[import-not-found]
from pyverbs.pd import PD  # type: ignore[import-not-found]
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr  # type: ignore[import-not-found]
from pyverbs.wr import SGE, RecvWR, SendWR  # type: ignore[import-not-found]

MTUS = {1024: e.IBV_MTU_1024, 4096: e.IBV_MTU_4096}


def main(given: dict[str, Any]) -> None:
    """given: of both ends, see tests/netns/test_rxe_interop.py. size: of each message; 4 of them are in the memory."""
    size = given["size"]
    access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
    context = Context(name=given["device"])
    pd, cq = PD(context), CQ(context, 64)
    memory = MR(pd, 4 * size, access)
    memory.write(given["text"] * size, size)  # the first message is what the peer reads, and what this end sends
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(16, 16, 1, 1, 0), sq_sig_all=1))
    route = GlobalRoute(dgid=GID(given["gid"]), sgid_index=given["gid_index"], hop_limit=64, traffic_class=98)
    attributes = QPAttr(port_num=1)
    attributes.qp_access_flags = access
    attributes.path_mtu, attributes.dest_qp_num = MTUS[given["mtu"]], given["qpn"]
    attributes.rq_psn = attributes.sq_psn = given["psn"]
    attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 4
    attributes.min_rnr_timer, attributes.timeout = 12, given["timeout"]
    attributes.retry_cnt = attributes.rnr_retry = 7
    attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
    qp.to_rts(attributes)
    for number in range(2):  # memory for a SEND, and none for the immediate of a WRITE
        qp.post_recv(RecvWR(num_sge=1, sg=[SGE(memory.buf + size, size, memory.lkey)], wr_id=number))
    print(json.dumps({"qpn": qp.qp_num, "va": memory.buf, "rkey": memory.rkey}), flush=True)

    came = completions(cq, 2)
    imm = socket.htonl(given["imm"])  # pyverbs passes it on as it is, and verbs have it in network byte order
    for opcode, at in (
        (e.IBV_WR_RDMA_WRITE_WITH_IMM, 0), (e.IBV_WR_SEND_WITH_IMM, 0), (e.IBV_WR_RDMA_READ, 3 * size),
    ):  # fmt: skip
        piece = SGE(memory.buf + at, size, memory.lkey)
        request = SendWR(opcode=opcode, num_sge=1, sg=[piece], imm_data=imm, send_flags=e.IBV_SEND_SIGNALED)
        if opcode != e.IBV_WR_SEND_WITH_IMM:
            request.set_wr_rdma(given["rkey"], given["va"])
        qp.post_send(request)
    completions(cq, 3)
    print(
        json.dumps(
            {
                "came": [(socket.ntohl(each.imm_data), each.byte_len) for each in came],
                "sent": memory.read(size, size).hex(),
                "written": memory.read(size, 2 * size).hex(),
                "read": memory.read(size, 3 * size).hex(),
            }
        )
    )


def completions(cq: CQ, count: int) -> list[Any]:
    """The next completions; each must be a success."""
    found: list[Any] = []
    deadline = time.monotonic() + 120
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} completions"
        found += cq.poll(1)[1]
        time.sleep(0.001)
    assert all(each.status == e.IBV_WC_SUCCESS for each in found), [each.status for each in found]
    return found


main(json.loads(sys.argv[1]))
