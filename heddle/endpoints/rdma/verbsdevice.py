"""One RDMA device and its queue pairs: registered memory, work requests, completions.

In:  the name of a device, an address of its interface, remote ends. Out: completions.
OSError with the library's reason where a call fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import time
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from heddle.base.families import as_ipv6
from heddle.endpoints.rdma import verbslib as ib

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
        access = ib.ACCESS_LOCAL_WRITE | ib.ACCESS_REMOTE_WRITE | ib.ACCESS_REMOTE_READ
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
        init = ib.QpInitStruct(send_cq=device.send_cq, recv_cq=device.recv_cq, qp_type=ib.QPT_RC, sq_sig_all=1)
        init.cap = ib.CapStruct(sends, max(1, receives), 1, 1, 0)
        self._qp = device.code.ibv_create_qp(device.pd, ctypes.byref(init))
        if not self._qp:
            raise _failure("ibv_create_qp")
        self.qpn = int(self._qp.contents.qp_num)
        access = ib.ACCESS_REMOTE_WRITE | ib.ACCESS_REMOTE_READ
        attr = ib.QpAttrStruct(qp_state=ib.STATE_INIT, port_num=1, qp_access_flags=access)
        self._modify(attr, ib.MASK_STATE | ib.MASK_PKEY | ib.MASK_PORT | ib.MASK_ACCESS)

    def connect(self, peer: Peer) -> None:
        """Make it ready to receive and to send."""
        attr = ib.QpAttrStruct(
            qp_state=ib.STATE_RTR, path_mtu=ib.MTU_OF_BYTES[peer.mtu], dest_qp_num=peer.qpn, rq_psn=peer.psn,
            max_dest_rd_atomic=_READS, min_rnr_timer=_RNR_TIMER,
        )  # fmt: skip
        attr.ah_attr.is_global, attr.ah_attr.port_num = 1, 1
        route = attr.ah_attr.grh
        ctypes.memmove(ctypes.addressof(route), as_ipv6(peer.ip), 16)
        route.flow_label, route.sgid_index = peer.flow_label, self._device.gid_index
        route.hop_limit, route.traffic_class = peer.hop_limit, peer.traffic_class
        mask = ib.MASK_STATE | ib.MASK_AV | ib.MASK_MTU | ib.MASK_DEST_QPN | ib.MASK_RQ_PSN
        self._reach(attr, mask | ib.MASK_READS | ib.MASK_RNR_TIMER)
        attr = ib.QpAttrStruct(
            qp_state=ib.STATE_RTS, sq_psn=peer.psn, timeout=peer.timeout, retry_cnt=peer.retries, rnr_retry=_FOREVER,
            max_rd_atomic=_READS,
        )  # fmt: skip
        mask = ib.MASK_STATE | ib.MASK_TIMEOUT | ib.MASK_RETRIES | ib.MASK_RNR_RETRIES | ib.MASK_SQ_PSN
        self._modify(attr, mask | ib.MASK_READS_HERE)

    def _reach(self, attr: ib.QpAttrStruct, mask: int) -> None:
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

    def _modify(self, attr: ib.QpAttrStruct, mask: int) -> None:
        code = self._device.code.ibv_modify_qp(self._qp, ctypes.byref(attr), mask)
        if code:
            raise OSError(code, f"ibv_modify_qp: {os.strerror(code)}")

    def post_send(
        self, opcode: int, wr_id: int, address: int, length: int, lkey: int, *, imm: int = 0, va: int = 0, rkey: int = 0
    ) -> None:
        """Post a send, write or read of one piece of registered memory. va, rkey: of the peer's memory."""
        piece = ib.SgeStruct(address, length, lkey)
        request = ib.SendStruct(
            wr_id=wr_id, sg_list=ctypes.pointer(piece), num_sge=1 if length else 0, opcode=opcode,
            send_flags=ib.SEND_SIGNALED, imm=socket.htonl(imm), remote_addr=va, rkey=rkey,
        )  # fmt: skip
        bad = ctypes.c_void_p()
        code = self._device.calls.post_send(self._qp, ctypes.byref(request), ctypes.byref(bad))
        if code:
            raise OSError(code, f"ibv_post_send: {os.strerror(code)}")

    def post_receive(self, wr_id: int, address: int, length: int, lkey: int) -> None:
        """Post memory for one message."""
        piece = ib.SgeStruct(address, length, lkey)
        request = ib.RecvStruct(wr_id=wr_id, sg_list=ctypes.pointer(piece), num_sge=1 if length else 0)
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
        self.code = ib.load_verbs()
        self.context = _open(self.code, name)
        self.calls = ib.ContextCalls(self.context)
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
        self._completions = (ib.WcStruct * _POLL)()

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

    def _completion(self, wc: ib.WcStruct) -> Completion:
        error = self.code.ibv_wc_status_str(wc.status).decode() if wc.status else ""
        imm = socket.ntohl(wc.imm) if wc.wc_flags & ib.WC_WITH_IMM else None
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
    code = ib.load_verbs()
    context = _open(code, name)
    try:
        return _wait_for_gid(code, context, ip)
    finally:
        code.ibv_close_device(context)


def _wait_for_gid(code: ctypes.CDLL, context: int, ip: str) -> int:
    wanted, found = as_ipv6(ip), ib.GidStruct()
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
