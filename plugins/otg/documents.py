"""The documents of Open Traffic Generator that this server reads: configuration, control states, requests.

In:  JSON of a client. Out: plain data with the defaults of the model (openapi.yaml of open-traffic-generator/models),
as lists, dictionaries and, for a `choice`, pairs of name and value. InputError with all errors.
"""

from __future__ import annotations

from typing import Any, Final

from heddle.base.problems import InputError
from heddle_plugins.otg.patterns import HEADERS
from heddle_plugins.otg.rules import (
    U32,
    U64,
    At,
    Remarks,
    Rule,
    address,
    choice,
    fields,
    flag,
    hexadecimal,
    listed,
    mac,
    nothing,
    number,
    octets,
    only,
    required,
    text,
    without_effect,
    word,
)

MOST_PORTS: Final = 256
MOST_FLOWS: Final = 1024  # raw ones, and queue pairs
MOST_HEADERS: Final = 16
MOST_ASKED: Final = 2048
ECN: Final = {"non_ect": 0, "ect_1": 1, "ect_0": 2, "ce": 3}
_LAB: Final = "the lab decides it"

_NAME: Final = text()
_NAMES: Final = listed(_NAME, MOST_ASKED)
_GAP: Final = only(12, "packets leave at the rate of the flow")


def _delay(default: float) -> Rule:
    """A time in bytes of the link, or of the modelled fabric."""
    options = {each: number(0, 0, U64, whole=False) for each in ("nanoseconds", "microseconds")}
    return choice("bytes", {"bytes": number(default, 0, U64, whole=False), **options}, always=True)


_DURATION: Final = choice("continuous", {
    "continuous": fields({"gap": _GAP, "delay": _delay(0)}, always=True),
    "fixed_packets": fields({"packets": number(1, 1), "gap": _GAP, "delay": _delay(0)}, always=True),
    "fixed_seconds": fields({"seconds": number(1, 0, 1e9, whole=False), "gap": _GAP, "delay": _delay(0)}, always=True),
    "burst": fields({
        "bursts": number(0), "packets": number(1, 1), "gap": _GAP, "inter_burst_gap": _delay(12),
    }, always=True),
}, always=True)  # fmt: skip
_RATE: Final = choice("pps", {
    "pps": number(1000, 1, U64), "bps": number(1_000_000_000, 672, U64), "kbps": number(1_000_000, 1, U64),
    "mbps": number(1000, 1, U64), "gbps": number(1, 1, U32), "percentage": number(100, 1e-6, 100, whole=False),
}, always=True)  # fmt: skip
_PAYLOAD: Final = choice("fixed", {
    "fixed": fields({"pattern": octets(1 << 14), "repeat": flag(True)}),
    **{f"{step}_{unit}": nothing() for step in ("increment", "decrement") for unit in ("byte", "word")},
})  # fmt: skip
_ONE_SIZE: Final = "every frame of a flow has one size"
_FLOW: Final = fields({
    "name": required(_NAME),
    "tx_rx": required(choice("port", {
        "port": fields({"tx_name": required(_NAME), "rx_name": _NAME, "rx_names": listed(_NAME, 1)}),
        "device": fields({
            "mode": word("mesh", "mesh", "one_to_one"),
            "tx_names": listed(_NAME, 1, 1), "rx_names": listed(_NAME, 1, 1),
            "bidirectional": only(False, "write a flow for each direction"),
        }),
    })),
    "packet": listed(choice("ethernet", {
        **HEADERS, "custom": required(fields({"bytes": required(octets(256))})),
    }), MOST_HEADERS, 1),
    "size": choice("fixed", {"fixed": number(64, 14, 1 << 16)}, always=True),
    "rate": _RATE,
    "duration": _DURATION,
    "payload": _PAYLOAD,
    "metrics": fields({
        "enable": flag(False), "loss": flag(False), "timestamps": only(False, "arrival times are not kept"),
        "latency": fields({
            "enable": only(False, "latency is not measured"), "mode": word(None, "store_forward", "cut_through"),
        }),
    }, always=True),
})  # fmt: skip

_CODEPOINT: Final = word("ect_1", *ECN)
_DSCP: Final = fields({"value": number(48, 0, 63)}, always=True)
_ANSWER: Final = fields({"choice": word("ip_dscp", "ip_dscp"), "ip_dscp": _DSCP, "ecn_value": _CODEPOINT}, always=True)
_PERCENT: Final = number(0.002, 0, 100, whole=False)
# The defaults are those of the model.
_ROCE_PORT: Final = fields({
    "cnp": fields({
        "choice": word("ip_dscp", "ip_dscp"), "ip_dscp": _DSCP, "ecn_value": _CODEPOINT,
        "cnp_delay_timer": number(55, 0, 255),
    }, always=True),
    "connection_type": choice("reliable_connection", {"reliable_connection": fields({
        "ack": _ANSWER, "nak": _ANSWER, "enable_retransmission_timeout": flag(True),
        "retransmission_timeout_value": number(1, 0, 5369), "retransmission_retry_count": number(3, 0, 254),
    }, always=True)}, always=True),
    "dcqcn_settings": fields({
        "enable_dcqcn": flag(True), "alpha_g": number(1019, 1, 1023), "initial_alpha": number(1023, 1, 1023),
        "alpha_update_period": number(21, 1, 131071), "rate_reduction_time_period": number(21, 1, U32),
        "initial_rate_after_first_cnp": _PERCENT, "minimum_rate_limmit": _PERCENT,
        "maximum_rate_decrement_at_time": number(10, 0, 100), "clamp_target_rate": flag(False),
        "rate_increment_time": number(250, 1, 131071), "rate_increment_byte_counter": number(32767, 1, 32767),
        "rate_increment_threshold": number(25, 1, 31),
        "additive_increment_rate": number(0.001, 0, 100, whole=False),
        "hyper_increment_rate": number(0.001, 0, 100, whole=False),
    }, always=True),
}, always=True)  # fmt: skip
ROCE_DEFAULTS: Final[dict[str, Any]] = _ROCE_PORT.default

_QP: Final = fields({
    "qp_name": required(_NAME),
    "connection_type": choice("reliable_connection", {"reliable_connection": fields({
        "source_qp_number": number(2, 2, 0xFFFFFF), "dscp": number(24, 0, 63), "ecn": _CODEPOINT,
        "udp_source_port": number(49152, 0, 0xFFFF), "initial_psn": number(0, 0, 0xFFFFFF),
        "virtual_address": hexadecimal(16), "remote_key": hexadecimal(8),
    }, always=True)}, always=True),
})  # fmt: skip


def _roce_interface(version: int) -> Rule:
    peer = fields({
        "name": required(_NAME), "destination_ip_address": required(address(version)), "qps": listed(_QP, MOST_FLOWS),
    })  # fmt: skip
    return fields({
        f"ipv{version}_name": required(_NAME), "ib_mtu": number(1024, 0, 14000), "peers": listed(peer, MOST_PORTS),
    })  # fmt: skip


def _interface(version: int) -> Rule:
    return fields({
        "name": required(_NAME), "address": required(address(version)), "gateway": required(address(version)),
        "prefix": number(None, 1, 32 if version == 4 else 128), "gateway_mac": without_effect(_LAB),
    })  # fmt: skip


_DEVICE: Final = fields({
    "name": required(_NAME),
    "ethernets": listed(fields({
        "name": required(_NAME), "mac": mac(), "mtu": number(1500, 0, 14000),
        "connection": required(choice("port_name", {"port_name": required(_NAME)})),
        "ipv4_addresses": listed(_interface(4), 1), "ipv6_addresses": listed(_interface(6), 1),
    }), MOST_PORTS),
    "rocev2": fields({
        "ipv4_interfaces": listed(_roce_interface(4), MOST_PORTS),
        "ipv6_interfaces": listed(_roce_interface(6), MOST_PORTS),
    }),
})  # fmt: skip
_IMMEDIATE: Final = fields({"immediate_data": hexadecimal(8)}, always=True)
_ROCE_FLOW: Final = fields({
    "name": required(_NAME), "tx_endpoint": required(_NAME), "rx_endpoint": _NAME,
    "rocev2_verb": choice("write", {
        "write": nothing(), "send": nothing(), "write_with_immediate": _IMMEDIATE, "send_with_immediate": _IMMEDIATE,
    }, always=True),
    "message_size": number(1, 1, 0xFFFF), "message_size_unit": word("mb", "bytes", "kb", "mb", "gb"),
})  # fmt: skip
_TX_PORT: Final = fields({
    "port_name": required(_NAME),
    "transmit_type": choice("target_line_rate", {"target_line_rate": fields({
        "value": number(98, 1, 100), "flows": listed(_ROCE_FLOW, MOST_FLOWS),
    }, always=True)}, always=True),
})  # fmt: skip
_CAPTURE: Final = fields({
    "name": required(_NAME), "port_names": listed(_NAME, MOST_PORTS, 1), "overwrite": flag(True),
    "packet_size": number(None, 1, 65535), "format": only("pcap", "captures are answered as pcap"),
    "filters": only([], "a capture has all packets"),
})  # fmt: skip
CONFIG: Final = fields({
    "ports": listed(fields({"name": required(_NAME), "location": required(_NAME)}), MOST_PORTS),
    "layer1": without_effect("links have the rates, MTUs and PFC classes of the lab"),
    "devices": listed(_DEVICE, MOST_PORTS),
    "flows": listed(_FLOW, MOST_FLOWS),
    "captures": listed(_CAPTURE, MOST_PORTS),
    "stateful_flows": choice("rocev2", {
        "rocev2": listed(fields({"tx_ports": listed(_TX_PORT, MOST_PORTS)}), MOST_PORTS),
    }),
    "options": fields({
        "port_options": fields({
            "location_preemption": without_effect("a lab has one server"),
            "data_integrity": only(False, "frames are not signed"),
        }),
        "per_port_options": listed(fields({
            "port_name": required(_NAME), "protocols": listed(choice("rocev2", {"rocev2": _ROCE_PORT}), 1),
        }), MOST_PORTS),
    }),
})  # fmt: skip
_STATE: Final = fields({"state": required(word(None, "start", "stop"))})
_PORT_STATE: Final = fields({"port_names": _NAMES, "state": required(word(None, "start", "stop"))})
CONTROL: Final = choice(None, {
    "port": required(choice(None, {"capture": required(_PORT_STATE)})),
    "protocol": required(choice(None, {"all": required(_STATE)})),
    "traffic": required(choice(None, {"flow_transmit": required(fields({
        "flow_names": _NAMES, "state": required(word(None, "start", "stop", "pause", "resume")),
    }))})),
})  # fmt: skip
_COLUMNS: Final = listed(_NAME, 64)
_PEERS: Final = choice("per_peer", {
    "per_peer": fields({"peer_names": _NAMES, "column_names": _COLUMNS}, always=True),
}, always=True)  # fmt: skip
METRICS: Final = choice("port", {
    "port": fields({"port_names": _NAMES, "column_names": _COLUMNS}, always=True),
    "flow": fields({
        "flow_names": _NAMES, "metric_names": _COLUMNS, "tagged_metrics": without_effect("there are no tags"),
    }, always=True),
    "rocev2_flow": choice("per_qp", {"per_qp": fields({"column_names": _COLUMNS}, always=True)}, always=True),
    "rocev2_ipv4": _PEERS,
    "rocev2_ipv6": _PEERS,
})  # fmt: skip
CAPTURE: Final = fields({
    "port_name": required(_NAME),
    "packets": choice("all", {
        "all": nothing(),
        "slice": choice("initial", {
            "initial": fields({"start": number(1, 1, U64), "count": number(100, 1, U64)}, always=True),
        }, always=True),
    }, always=True),
})  # fmt: skip


def read(document: Any, rule: Rule, notes: Remarks) -> Any:
    """A document by a rule; InputError with everything that is wrong."""
    found = rule.read(document, At("", notes))
    check(notes)
    return found


def check(notes: Remarks) -> None:
    """InputError with all problems so far, if there are any."""
    if notes.problems:
        raise InputError(*notes.problems)
