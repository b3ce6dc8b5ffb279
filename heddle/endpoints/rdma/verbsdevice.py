"""One RDMA device and its queue pairs, by rdma-core's libibverbs.so.1 with ctypes: memory, work requests, completions.

In:  the name of a device, an address of its interface, remote ends. Out: completions.
OSError with the library's reason where a call fails.
The structures are the library's ABI, version IBVERBS_1.1, on 64-bit machines (infiniband/verbs.h). ibv_post_send,
ibv_post_recv, ibv_poll_cq and ibv_req_notify_cq are inline functions there: they call a pointer in the context.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import socket
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from heddle.base.families import as_ipv6
from heddle.base.problems import MachineError, Problem
from heddle.endpoints.connections import part_bytes
from heddle.kernel.native import native
from heddle.traffic.plan import ACK_TIMEOUT_UNIT_S, Plan

_U8, _U16, _U32, _U64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
_P, _INT = ctypes.c_void_p, ctypes.c_int

# enum values of infiniband/verbs.h
QPT_RC: Final = 2
MTU_OF_BYTES: Final = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
STATE_INIT, STATE_RTR, STATE_RTS = 1, 2, 3
ACCESS_LOCAL_WRITE, ACCESS_REMOTE_WRITE, ACCESS_REMOTE_READ = 1, 2, 4
SEND_SIGNALED: Final = 2
WR_WRITE, WR_WRITE_IMM, WR_SEND, WR_SEND_IMM, WR_READ = 0, 1, 2, 3, 4
WC_WITH_IMM: Final = 2
# enum ibv_qp_attr_mask
MASK_STATE, MASK_ACCESS, MASK_PKEY, MASK_PORT = 1 << 0, 1 << 3, 1 << 4, 1 << 5
MASK_AV, MASK_MTU, MASK_TIMEOUT, MASK_RETRIES, MASK_RNR_RETRIES = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 11
MASK_RQ_PSN, MASK_READS_HERE, MASK_RNR_TIMER = 1 << 12, 1 << 13, 1 << 15
MASK_SQ_PSN, MASK_READS, MASK_DEST_QPN = 1 << 16, 1 << 17, 1 << 20
_OPS_AT: Final = 8  # of struct ibv_context: ops
_POLL_CQ, _REQ_NOTIFY, _POST_SEND, _POST_RECV = 88, 96, 200, 208  # offsets in struct ibv_context_ops


class GidStruct(ctypes.Structure):
    """union ibv_gid: a global identifier, for RoCEv2 an IPv6 address, or an IPv4 one as ::ffff:a.b.c.d."""

    _fields_ = (("raw", _U8 * 16),)


class RouteStruct(ctypes.Structure):
    """struct ibv_global_route."""

    _fields_ = (
        ("dgid", _U64 * 2), ("flow_label", _U32), ("sgid_index", _U8), ("hop_limit", _U8), ("traffic_class", _U8),
    )  # fmt: skip


class AhStruct(ctypes.Structure):
    """struct ibv_ah_attr."""

    _fields_ = (
        ("grh", RouteStruct), ("dlid", _U16), ("sl", _U8), ("src_path_bits", _U8), ("static_rate", _U8),
        ("is_global", _U8), ("port_num", _U8),
    )  # fmt: skip


class CapStruct(ctypes.Structure):
    """struct ibv_qp_cap."""

    _fields_ = (
        ("max_send_wr", _U32), ("max_recv_wr", _U32), ("max_send_sge", _U32), ("max_recv_sge", _U32),
        ("max_inline_data", _U32),
    )  # fmt: skip


class QpInitStruct(ctypes.Structure):
    """struct ibv_qp_init_attr."""

    _fields_ = (
        ("qp_context", _P), ("send_cq", _P), ("recv_cq", _P), ("srq", _P), ("cap", CapStruct), ("qp_type", _INT),
        ("sq_sig_all", _INT),
    )  # fmt: skip


class QpAttrStruct(ctypes.Structure):
    """struct ibv_qp_attr."""

    _fields_ = (
        ("qp_state", _INT), ("cur_qp_state", _INT), ("path_mtu", _INT), ("path_mig_state", _INT), ("qkey", _U32),
        ("rq_psn", _U32), ("sq_psn", _U32), ("dest_qp_num", _U32), ("qp_access_flags", ctypes.c_uint),
        ("cap", CapStruct), ("ah_attr", AhStruct), ("alt_ah_attr", AhStruct), ("pkey_index", _U16),
        ("alt_pkey_index", _U16), ("en_sqd_async_notify", _U8), ("sq_draining", _U8), ("max_rd_atomic", _U8),
        ("max_dest_rd_atomic", _U8), ("min_rnr_timer", _U8), ("port_num", _U8), ("timeout", _U8), ("retry_cnt", _U8),
        ("rnr_retry", _U8), ("alt_port_num", _U8), ("alt_timeout", _U8), ("rate_limit", _U32),
    )  # fmt: skip


class SgeStruct(ctypes.Structure):
    """struct ibv_sge: a piece of registered memory."""

    _fields_ = (("addr", _U64), ("length", _U32), ("lkey", _U32))


class SendStruct(ctypes.Structure):
    """struct ibv_send_wr. imm: network byte order. remote_addr, rkey: of the union `wr`, its member `rdma`."""

    _fields_ = (
        ("wr_id", _U64), ("next", _P), ("sg_list", ctypes.POINTER(SgeStruct)), ("num_sge", _INT), ("opcode", _INT),
        ("send_flags", ctypes.c_uint), ("imm", _U32), ("remote_addr", _U64), ("rkey", _U32), ("rest", _U8 * 76),
    )  # fmt: skip


class RecvStruct(ctypes.Structure):
    """struct ibv_recv_wr."""

    _fields_ = (("wr_id", _U64), ("next", _P), ("sg_list", ctypes.POINTER(SgeStruct)), ("num_sge", _INT))


class WcStruct(ctypes.Structure):
    """struct ibv_wc: a completion. imm: network byte order."""

    _fields_ = (
        ("wr_id", _U64), ("status", _INT), ("opcode", _INT), ("vendor_err", _U32), ("byte_len", _U32), ("imm", _U32),
        ("qp_num", _U32), ("src_qp", _U32), ("wc_flags", ctypes.c_uint), ("pkey_index", _U16), ("slid", _U16),
        ("sl", _U8), ("dlid_path_bits", _U8),
    )  # fmt: skip


class QpStruct(ctypes.Structure):
    """The first fields of struct ibv_qp."""

    _fields_ = (
        ("context", _P), ("qp_context", _P), ("pd", _P), ("send_cq", _P), ("recv_cq", _P), ("srq", _P),
        ("handle", _U32), ("qp_num", _U32),
    )  # fmt: skip


class MrStruct(ctypes.Structure):
    """struct ibv_mr: registered memory."""

    _fields_ = (
        ("context", _P), ("pd", _P), ("addr", _P), ("length", ctypes.c_size_t), ("handle", _U32), ("lkey", _U32),
        ("rkey", _U32),
    )  # fmt: skip


class ChannelStruct(ctypes.Structure):
    """struct ibv_comp_channel: a descriptor that is readable when a completion has arrived."""

    _fields_ = (("context", _P), ("fd", _INT), ("refcnt", _INT))


SIZES: Final = {SendStruct: 128, RecvStruct: 32, WcStruct: 48, QpAttrStruct: 144, QpInitStruct: 64, AhStruct: 32}

_SIGNATURES: Final[native.Signatures] = {
    "ibv_get_device_list": (ctypes.POINTER(_P), (ctypes.POINTER(_INT),)),
    "ibv_free_device_list": (None, (ctypes.POINTER(_P),)),
    "ibv_get_device_name": (ctypes.c_char_p, (_P,)),
    "ibv_open_device": (_P, (_P,)),
    "ibv_close_device": (_INT, (_P,)),
    "ibv_query_gid": (_INT, (_P, _U8, _INT, ctypes.POINTER(GidStruct))),
    "ibv_alloc_pd": (_P, (_P,)),
    "ibv_dealloc_pd": (_INT, (_P,)),
    "ibv_reg_mr": (ctypes.POINTER(MrStruct), (_P, _P, ctypes.c_size_t, _INT)),
    "ibv_dereg_mr": (_INT, (ctypes.POINTER(MrStruct),)),
    "ibv_create_comp_channel": (ctypes.POINTER(ChannelStruct), (_P,)),
    "ibv_destroy_comp_channel": (_INT, (ctypes.POINTER(ChannelStruct),)),
    "ibv_create_cq": (_P, (_P, _INT, _P, ctypes.POINTER(ChannelStruct), _INT)),
    "ibv_destroy_cq": (_INT, (_P,)),
    "ibv_get_cq_event": (_INT, (ctypes.POINTER(ChannelStruct), ctypes.POINTER(_P), ctypes.POINTER(_P))),
    "ibv_ack_cq_events": (None, (_P, ctypes.c_uint)),
    "ibv_create_qp": (ctypes.POINTER(QpStruct), (_P, ctypes.POINTER(QpInitStruct))),
    "ibv_modify_qp": (_INT, (ctypes.POINTER(QpStruct), ctypes.POINTER(QpAttrStruct), _INT)),
    "ibv_destroy_qp": (_INT, (ctypes.POINTER(QpStruct),)),
    "ibv_wc_status_str": (ctypes.c_char_p, (_INT,)),
}


@cache
def load_verbs() -> ctypes.CDLL:
    """The library with the types of its functions; MachineError when it is not installed."""
    code = native.load(Path("libibverbs.so.1"), _SIGNATURES)
    if isinstance(code, str):
        hint = "run apt-get install libibverbs1 ibverbs-providers, or use --on vm"
        raise MachineError(Problem("", "libibverbs.so.1", "is not installed, and verbs need it", hint))
    return code


class ContextCalls:
    """The functions behind a context's pointers."""

    def __init__(self, context: int) -> None:
        def of(offset: int, *arguments: Any) -> Any:
            pointer = _P.from_address(context + _OPS_AT + offset).value
            return ctypes.CFUNCTYPE(_INT, *arguments)(pointer or 0)

        self.poll_cq = of(_POLL_CQ, _P, _INT, ctypes.POINTER(WcStruct))
        self.req_notify_cq = of(_REQ_NOTIFY, _P, _INT)
        self.post_send = of(_POST_SEND, ctypes.POINTER(QpStruct), ctypes.POINTER(SendStruct), ctypes.POINTER(_P))
        self.post_recv = of(_POST_RECV, ctypes.POINTER(QpStruct), ctypes.POINTER(RecvStruct), ctypes.POINTER(_P))


_GID_WAIT_S: Final = 5.0  # a new device learns its addresses from a kernel thread
_GIDS: Final = 64  # table entries that are searched
_POLL: Final = 32  # completions per call
_RNR_TIMER: Final = 12  # 0.64 ms (IBTA vol. 1, table 45)
_FOREVER: Final = 7  # retries while the receiver is not ready
_READS: Final = 16  # outstanding READs of a queue pair
_LOOKUPS: Final = 5  # of the next MAC address, a second each


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished work request. error: in words, empty when it succeeded. imm: None without immediate data.

    length: bytes that arrived; of receives only.
    """

    qpn: int
    wr_id: int
    error: str
    opcode: int
    length: int
    imm: int | None


@dataclass(frozen=True, slots=True)
class Peer:
    """The remote end of a queue pair, and how to reach it. timeout: exponent of the local ACK timeout.

    flow_label: 0: the kernel derives it from the two QP numbers. traffic_class: TOS byte, or IPv6 traffic class.
    psn: of both directions, 24 bits. mtu: bytes.
    """

    ip: str
    qpn: int
    psn: int
    mtu: int = 4096
    traffic_class: int = 0
    flow_label: int = 0
    hop_limit: int = 64
    timeout: int = 14
    retries: int = 7


class Memory:
    """A registered array. Its owner must deregister it before the device is closed."""

    def __init__(self, device: VerbsDevice, array: NDArray[np.uint8]) -> None:
        self.array = array
        self.address = int(array.__array_interface__["data"][0])
        access = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ
        self._mr = device.code.ibv_reg_mr(device.pd, self.address, max(1, array.nbytes), access)
        if not self._mr:
            raise _failure("ibv_reg_mr")
        self._device = device
        self.lkey, self.rkey = int(self._mr.contents.lkey), int(self._mr.contents.rkey)

    def contains(self, address: int, length: int) -> bool:
        """Whether a range of addresses is inside."""
        return self.address <= address and address + length <= self.address + self.array.nbytes

    def deregister(self) -> None:
        """Release the registration."""
        self._device.code.ibv_dereg_mr(self._mr)


class VerbsQp:
    """A reliable connection. The first part of its life needs no peer: `connect` makes it usable."""

    def __init__(self, device: VerbsDevice, sends: int, receives: int) -> None:
        self._device = device
        init = QpInitStruct(send_cq=device.send_cq, recv_cq=device.recv_cq, qp_type=QPT_RC, sq_sig_all=1)
        init.cap = CapStruct(sends, max(1, receives), 1, 1, 0)
        self._qp = device.code.ibv_create_qp(device.pd, ctypes.byref(init))
        if not self._qp:
            raise _failure("ibv_create_qp")
        self.qpn = int(self._qp.contents.qp_num)
        access = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ
        attr = QpAttrStruct(qp_state=STATE_INIT, port_num=1, qp_access_flags=access)
        self._modify(attr, MASK_STATE | MASK_PKEY | MASK_PORT | MASK_ACCESS)

    def connect(self, peer: Peer) -> None:
        """Make it ready to receive and to send."""
        attr = QpAttrStruct(
            qp_state=STATE_RTR, path_mtu=MTU_OF_BYTES[peer.mtu], dest_qp_num=peer.qpn, rq_psn=peer.psn,
            max_dest_rd_atomic=_READS, min_rnr_timer=_RNR_TIMER,
        )  # fmt: skip
        attr.ah_attr.is_global, attr.ah_attr.port_num = 1, 1
        route = attr.ah_attr.grh
        ctypes.memmove(ctypes.addressof(route), as_ipv6(peer.ip), 16)
        route.flow_label, route.sgid_index = peer.flow_label, self._device.gid_index
        route.hop_limit, route.traffic_class = peer.hop_limit, peer.traffic_class
        mask = MASK_STATE | MASK_AV | MASK_MTU | MASK_DEST_QPN | MASK_RQ_PSN
        self._reach(attr, mask | MASK_READS | MASK_RNR_TIMER)
        attr = QpAttrStruct(
            qp_state=STATE_RTS, sq_psn=peer.psn, timeout=peer.timeout, retry_cnt=peer.retries, rnr_retry=_FOREVER,
            max_rd_atomic=_READS,
        )  # fmt: skip
        mask = MASK_STATE | MASK_TIMEOUT | MASK_RETRIES | MASK_RNR_RETRIES | MASK_SQ_PSN
        self._modify(attr, mask | MASK_READS_HERE)

    def _reach(self, attr: QpAttrStruct, mask: int) -> None:
        """Modify it to RTR. The kernel looks up the next MAC address, and gives up after a second (addr_resolve).

        An ARP packet can be lost on a link with a fault, so this is tried again; a QP that failed stays in INIT.
        """
        for attempt in range(1, _LOOKUPS + 1):
            try:
                self._modify(attr, mask)
                break
            except OSError as error:
                if error.errno != errno.ETIMEDOUT or attempt == _LOOKUPS:
                    raise

    def _modify(self, attr: QpAttrStruct, mask: int) -> None:
        code = self._device.code.ibv_modify_qp(self._qp, ctypes.byref(attr), mask)
        if code:
            raise OSError(code, f"ibv_modify_qp: {os.strerror(code)}")

    def post_send(
        self, opcode: int, wr_id: int, address: int, length: int, lkey: int, *, imm: int = 0, va: int = 0, rkey: int = 0
    ) -> None:
        """Post a send, write or read of one piece of registered memory. va, rkey: of the peer's memory."""
        piece = SgeStruct(address, length, lkey)
        request = SendStruct(
            wr_id=wr_id, sg_list=ctypes.pointer(piece), num_sge=1 if length else 0, opcode=opcode,
            send_flags=SEND_SIGNALED, imm=socket.htonl(imm), remote_addr=va, rkey=rkey,
        )  # fmt: skip
        bad = ctypes.c_void_p()
        code = self._device.calls.post_send(self._qp, ctypes.byref(request), ctypes.byref(bad))
        if code:
            raise OSError(code, f"ibv_post_send: {os.strerror(code)}")

    def post_receive(self, wr_id: int, address: int, length: int, lkey: int) -> None:
        """Post memory for one message."""
        piece = SgeStruct(address, length, lkey)
        request = RecvStruct(wr_id=wr_id, sg_list=ctypes.pointer(piece), num_sge=1 if length else 0)
        bad = ctypes.c_void_p()
        code = self._device.calls.post_recv(self._qp, ctypes.byref(request), ctypes.byref(bad))
        if code:
            raise OSError(code, f"ibv_post_recv: {os.strerror(code)}")

    def destroy(self) -> None:
        """Free it; what was posted does not complete."""
        self._device.code.ibv_destroy_qp(self._qp)


class VerbsDevice:
    """An open device, with one completion queue for sends and one for receives. name: as `rdma link` shows it.

    Where devices are kept apart by namespaces, the thread that opens it is in the device's.
    """

    def __init__(self, name: str, ip: str, completions: int = 4096) -> None:
        self.code = load_verbs()
        self.context = _open(self.code, name)
        self.calls = ContextCalls(self.context)
        self.gid_index = _wait_for_gid(self.code, self.context, ip)
        self.pd = self.code.ibv_alloc_pd(self.context) or _none("ibv_alloc_pd")
        self._channel = self.code.ibv_create_comp_channel(self.context)
        if not self._channel:
            raise _failure("ibv_create_comp_channel")
        os.set_blocking(self.fileno(), False)
        self.send_cq, self.recv_cq = (
            self.code.ibv_create_cq(self.context, completions, None, self._channel, 0) or _none("ibv_create_cq")
            for _ in range(2)
        )
        self._completions = (WcStruct * _POLL)()

    def fileno(self) -> int:
        """A descriptor that is readable when a completion has arrived after `arm`."""
        return int(self._channel.contents.fd)

    def arm(self) -> None:
        """Request an event for the next completion of either queue. Poll afterwards: one may have come before."""
        for queue in (self.send_cq, self.recv_cq):
            self.calls.req_notify_cq(queue, 0)

    def take_events(self) -> None:
        """Read the events that made the descriptor readable."""
        queue, context = ctypes.c_void_p(), ctypes.c_void_p()
        while self.code.ibv_get_cq_event(self._channel, ctypes.byref(queue), ctypes.byref(context)) == 0:
            self.code.ibv_ack_cq_events(queue, 1)

    def sent(self) -> list[Completion]:
        """Finished sends, writes and reads, at most 32."""
        return self._poll(self.send_cq)

    def received(self) -> list[Completion]:
        """Messages that arrived, at most 32."""
        return self._poll(self.recv_cq)

    def _poll(self, queue: int) -> list[Completion]:
        count = self.calls.poll_cq(queue, _POLL, self._completions)
        if count < 0:
            raise OSError(errno.EIO, "ibv_poll_cq failed")
        return [self._completion(self._completions[index]) for index in range(count)]

    def _completion(self, wc: WcStruct) -> Completion:
        error = self.code.ibv_wc_status_str(wc.status).decode() if wc.status else ""
        imm = socket.ntohl(wc.imm) if wc.wc_flags & WC_WITH_IMM else None
        return Completion(wc.qp_num, wc.wr_id, error, wc.opcode, wc.byte_len, imm)

    def close(self) -> None:
        """Free everything; queue pairs and memory must be freed before."""
        for queue in (self.send_cq, self.recv_cq):
            self.code.ibv_destroy_cq(queue)
        self.code.ibv_destroy_comp_channel(self._channel)
        self.code.ibv_dealloc_pd(self.pd)
        self.code.ibv_close_device(self.context)


def gid_index(name: str, ip: str) -> int:
    """The index of an address in the table of a device, which must be visible in the namespace of this thread."""
    code = load_verbs()
    context = _open(code, name)
    try:
        return _wait_for_gid(code, context, ip)
    finally:
        code.ibv_close_device(context)


def _wait_for_gid(code: ctypes.CDLL, context: int, ip: str) -> int:
    wanted, found = as_ipv6(ip), GidStruct()
    deadline = time.monotonic() + _GID_WAIT_S
    while True:
        for index in range(_GIDS):
            if code.ibv_query_gid(context, 1, index, ctypes.byref(found)) == 0 and bytes(found) == wanted:
                return index
        if time.monotonic() > deadline:
            raise OSError(errno.EADDRNOTAVAIL, f"its RDMA device does not have the address {ip}")
        time.sleep(0.02)


def _open(code: ctypes.CDLL, name: str) -> int:
    count = ctypes.c_int()
    devices = code.ibv_get_device_list(ctypes.byref(count))
    if not devices:
        raise _failure("ibv_get_device_list")
    try:
        for index in range(count.value):
            if code.ibv_get_device_name(devices[index]).decode() == name:
                return int(code.ibv_open_device(devices[index]) or _none("ibv_open_device"))
    finally:
        code.ibv_free_device_list(devices)
    raise OSError(errno.ENODEV, f"there is no RDMA device {name}")


def _none(call: str) -> int:
    raise _failure(call)


def _failure(call: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {os.strerror(code)}")


@dataclass(frozen=True, slots=True)
class VerbsParams:
    """Parameters of a queue pair. timeout: exponent of the local ACK timeout, 4.096 us x 2^timeout."""

    timeout: int
    retries: int
    traffic_class: int

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Those of a plan, in the three and five bits that verbs have for them."""
        exponent = round(math.log2(plan.timeout_s / ACK_TIMEOUT_UNIT_S))
        return cls(max(1, min(31, exponent)), min(7, plan.options.retries), plan.options.tos)


def message_bytes(plan: Plan) -> int:
    """The largest message that one queue pair sends."""
    o = plan.options
    return part_bytes(o.chunk, o.qps) if o.qp_mode == "split" else o.chunk
