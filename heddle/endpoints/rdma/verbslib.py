"""rdma-core's libibverbs.so.1 by ctypes: the functions and structures that Heddle uses, and nothing else.

The structures are the library's ABI, version IBVERBS_1.1, on 64-bit machines (infiniband/verbs.h). ibv_post_send,
ibv_post_recv, ibv_poll_cq and ibv_req_notify_cq are inline functions there: they call a pointer in the context.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import MachineError, Problem
from heddle.kernel.native import native

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
        hint = "run apt-get install libibverbs1 ibverbs-providers, or use --place vm"
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
