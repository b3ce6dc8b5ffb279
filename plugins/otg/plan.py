"""What a configuration means in a lab: ports as NICs, flows with rates of the emulation, queue pairs with numbers.

In:  a configuration (documents.CONFIG) and the fabric of a lab. Out: TrafficPlan; errors and warnings
in Remarks.
Rates of a configuration are those of the modelled fabric and are divided by k, gaps and delays are multiplied by k.
Percentages need no k; `fixed_seconds` are seconds of the clock. Sizes of frames are without FCS.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from heddle.base.ethernet import HEADER
from heddle.base.problems import InputError, did_you_mean
from heddle.fabric.model import Fabric
from heddle.fabric.pathdelay import PathDelays
from heddle.runs.explain import nic_named
from heddle.traffic.inflight import Propagation, delay_between
from heddle.traffic.options import RunOptions
from heddle.traffic.placement import endpoint_at, no_nic
from heddle.traffic.plan import ack_timeout
from heddle.wire.layout import LAYOUTS
from heddle_plugins.otg import frames
from heddle_plugins.otg.documents import MOST_FLOWS, ROCE_DEFAULTS
from heddle_plugins.otg.flows import (
    MOST_MESSAGE,
    WINDOW,
    CaptureSetting,
    OtgPort,
    QpSetting,
    RawFlow,
    RoceFlow,
    TrafficPlan,
)
from heddle_plugins.otg.frames import RawFrames
from heddle_plugins.otg.rules import At, Remarks

FIRST_RESPONDER: Final = 0x100000  # number of the first queue pair that receives at a NIC
_BPS: Final = {"bps": 1, "kbps": 10**3, "mbps": 10**6, "gbps": 10**9}
_SECONDS: Final = {"nanoseconds": 1e-9, "microseconds": 1e-6}
_UNITS: Final = {"bytes": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


def plan_of(fabric: Fabric, config: Mapping[str, Any], notes: Remarks) -> TrafficPlan:
    """Read a configuration for a fabric. Errors and warnings go to the notes; the caller raises them."""
    return _Reading(fabric, config, notes).plan()


class _Reading:
    def __init__(self, fabric: Fabric, config: Mapping[str, Any], notes: Remarks) -> None:
        self._fabric, self._config, self._root = fabric, config, At("", notes)
        self._k = fabric.policy.k
        self._delays = PathDelays(fabric)
        self._ports: dict[str, OtgPort] = {}
        self._interfaces: dict[str, OtgPort] = {}  # of devices, by name
        self._qps: dict[str, QpSetting] = {}
        self._responders: dict[str, int] = {}  # by NIC
        self._used: dict[tuple[str, int], str] = {}  # (NIC, number) -> the queue pair

    def plan(self) -> TrafficPlan:
        root, config = self._root, self._config
        self._read_ports(config["ports"], root.inside("ports"))
        peers: dict[tuple[str, int], tuple[QpSetting, ...]] = {}
        for index, device in enumerate(config["devices"]):
            at = root.inside("devices").inside(index)
            for number, ethernet in enumerate(device["ethernets"]):
                self._read_ethernet(ethernet, at.inside("ethernets").inside(number))
            for version in (4, 6):
                interfaces = (device["rocev2"] or {}).get(f"ipv{version}_interfaces", [])
                for number, each in enumerate(interfaces):
                    place = at.inside("rocev2").inside(f"ipv{version}_interfaces").inside(number)
                    peers |= {(name, version): found for name, found in self._peers(each, version, place)}
        raw = [*self._raw_flows()]
        roce = [*self._roce_flows()]
        if len(raw) + len(roce) > MOST_FLOWS:
            root.inside("flows").wrong(f"are {len(raw) + len(roce)} with those of RoCEv2", f"use up to {MOST_FLOWS}")
        self._check_told_apart(raw)
        return TrafficPlan(self._ports, tuple(raw), tuple(roce), peers, dict(self._captures()))

    def _read_ports(self, ports: Sequence[Mapping[str, Any]], at: At) -> None:
        settings = self._settings()
        taken: dict[str, str] = {}
        for index, each in enumerate(ports):
            name, location, place = each["name"], each["location"], at.inside(index)
            try:
                port, _ = nic_named(self._fabric, "location", location)
            except InputError as error:
                place.inside("location").wrong(f"is {location}: {error.problems[0].why}", error.problems[0].hint)
                continue
            if why := no_nic(self._fabric, port):
                place.inside("location").wrong(f"is {location}, which {why}")
                continue
            for names, what in ((self._ports, name), (taken, port.ref)):
                if what in names:
                    place.wrong(f"names {what}, as another port does", "use each name and each NIC once")
            taken[port.ref] = name
            end = endpoint_at(self._fabric, index, port)
            self._ports[name] = OtgPort(name, location, end, settings.get(name, ROCE_DEFAULTS))
        for name in settings.keys() - self._ports.keys():
            self._root.inside("options").wrong(f"name port {name}, which is not there", did_you_mean(name, self._ports))

    def _settings(self) -> dict[str, Mapping[str, Any]]:
        rows = (self._config["options"] or {}).get("per_port_options", [])
        return {each["port_name"]: protocol for each in rows for _, protocol in each["protocols"] if protocol}

    def _port(self, name: str | None, at: At) -> OtgPort | None:
        if name is None:
            return None
        if name not in self._ports:
            at.wrong(f"is {name}, which is not a port", did_you_mean(name, self._ports))
        return self._ports.get(name)

    def _read_ethernet(self, ethernet: Mapping[str, Any], at: At) -> None:
        _, name = ethernet["connection"]
        port = self._port(name, at.inside("connection").inside("port_name"))
        if port is None:
            return
        end = port.end
        self._add_interface(ethernet["name"], port, at)
        if ethernet["mac"] is not None and ethernet["mac"] != int(end.mac.replace(":", ""), 16):
            at.inside("mac").note(f"has no effect: {end.nic} has {end.mac}")
        if ethernet["mtu"] > end.mtu:
            at.inside("mtu").note(f"is {ethernet['mtu']}: the MTU of {end.nic} is {end.mtu}")
        for version in (4, 6):
            for index, each in enumerate(ethernet[f"ipv{version}_addresses"]):
                place = at.inside(f"ipv{version}_addresses").inside(index)
                self._add_interface(each["name"], port, place)
                own_address = self._fabric.by_name[end.host].port(end.port).address
                if each["prefix"] is not None and own_address and each["prefix"] != own_address.network.prefixlen:
                    place.inside("prefix").note(f"has no effect: {end.nic} has {own_address}")
                for key, own in (("address", end.ip), ("gateway", end.gateway_ip)):
                    if each[key] != int(ipaddress.ip_address(own)):
                        shown = ipaddress.ip_address(each[key].to_bytes(4 if version == 4 else 16, "big"))
                        if key == "address":
                            place.inside(key).wrong(f"is {shown}, and {end.nic} has {own}", f"use {own}")
                        else:
                            place.inside(key).note(f"has no effect: the gateway of {end.nic} is {own}")

    def _add_interface(self, name: str | None, port: OtgPort, at: At) -> None:
        if name in self._interfaces:
            at.inside("name").wrong(f"is {name}, as another interface has it")
        if name is not None:
            self._interfaces[name] = port

    def _peers(self, interface: Mapping[str, Any], version: int, at: At) -> Iterator[tuple[str, tuple[QpSetting, ...]]]:
        name = interface[f"ipv{version}_name"]
        port = self._interfaces.get(name)
        if port is None:
            at.inside(f"ipv{version}_name").wrong(
                f"is {name}, which is not an interface", did_you_mean(str(name), self._interfaces)
            )
            return
        own = self._fabric.policy.ib_mtu
        mtu = min(interface["ib_mtu"] or own, own)
        if interface["ib_mtu"] > own:
            at.inside("ib_mtu").note(f"is {interface['ib_mtu']}: packets have {own} bytes, as in this lab")
        for index, peer in enumerate(interface["peers"]):
            place, found = at.inside("peers").inside(index), list[QpSetting]()
            to = peer["destination_ip_address"].to_bytes(4 if version == 4 else 16, "big")
            for number, qp in enumerate(peer["qps"]):
                data = qp["connection_type"][1]
                key = port.end.nic, data["source_qp_number"]
                inside = place.inside("qps").inside(number)
                if key in self._used or qp["qp_name"] in self._qps:
                    why = f"has number {key[1]} or name {qp['qp_name']}, as another one of {key[0]} has"
                    inside.wrong(why, "give each queue pair a source_qp_number and a name of its own")
                setting = QpSetting(qp["qp_name"], port, peer["name"], str(ipaddress.ip_address(to)), mtu, data)
                self._used[key] = setting.name
                self._qps[setting.name] = setting
                found.append(setting)
            yield peer["name"], tuple(found)

    def _ends(self, flow: Mapping[str, Any], at: At) -> tuple[OtgPort | None, OtgPort | None]:
        how, ends = flow["tx_rx"]
        at = at.inside("tx_rx").inside(how)
        if how == "port":
            names = [*([ends["rx_name"]] if ends["rx_name"] else []), *ends["rx_names"]]
            if len(set(names)) > 1:
                at.inside("rx_names").wrong("names several ports", "write a flow for each")
            rx = self._port(names[0], at.inside("rx_names")) if names else None
            return self._port(ends["tx_name"], at.inside("tx_name")), rx
        found = []
        for key in ("tx_names", "rx_names"):
            name = next(iter(ends[key]), None)
            port = self._interfaces.get(name) if name else None
            if port is None:
                at.inside(key).wrong(f"is {name}, which is not an interface", did_you_mean(str(name), self._interfaces))
            found.append(port)
        return found[0], found[1]

    def _raw_flows(self) -> Iterator[RawFlow]:
        names = set[str]()
        for index, flow in enumerate(self._config["flows"]):
            at = self._root.inside("flows").inside(index)
            if flow["name"] in names:
                at.inside("name").wrong(f"is {flow['name']}, as another flow has it")
            names.add(flow["name"])
            tx, rx = self._ends(flow, at)
            headers = flow["packet"]
            if why := frames.order_problem([name for name, _ in headers]):
                at.inside("packet").wrong(why)
                continue
            if tx is None:
                continue
            made = RawFrames(headers, flow["size"][1], flow["payload"], tx.end, rx.end if rx else None)
            if not made.least_bytes <= made.size <= tx.end.mtu + HEADER:
                hint = f"use {made.least_bytes} to {tx.end.mtu + HEADER}"
                at.inside("size").wrong(f"is {made.size} bytes: its headers and the MTU of {tx.end.nic} limit it", hint)
            pps = self._pps(flow["rate"], made.size, tx, at.inside("rate"))
            how, duration = flow["duration"]
            burst = duration["packets"] if how == "burst" else 0
            packets = duration["packets"] if how == "fixed_packets" else burst * duration.get("bursts", 0) or None
            gap_s = self._time_s(duration["inter_burst_gap"], tx) if burst else 0.0
            signature = made.signature() if rx is not None else None
            if rx is not None and signature is None:
                at.note("has no IP header: no switch routes its frames, so the receiver counts none")
            yield RawFlow(
                flow["name"], tx, rx, made, pps, packets, duration.get("seconds"), burst, gap_s,
                self._time_s(duration["delay"], tx) if "delay" in duration else 0.0, signature,
                flow["metrics"]["enable"], flow["metrics"]["loss"],
            )  # fmt: skip

    def _pps(self, rate: tuple[str, float], size: int, tx: OtgPort, at: At) -> float:
        unit, value = rate
        line = tx.end.rate_bps / (8 * size)
        if unit == "percentage":
            return line * value / 100
        pps = (value if unit == "pps" else value * _BPS[unit] / (8 * size)) / self._k
        if pps > line * 1.0001:
            why = f"is {value:g} {unit}, above the rate of {tx.end.nic}: {tx.end.rate_bps * self._k / 1e9:g} Gb/s"
            at.wrong(f"{why}, {line * self._k:,.0f} of these packets per second", "use a lower rate, or percentage")
        return pps

    def _time_s(self, asked: tuple[str, float], tx: OtgPort) -> float:
        unit, value = asked
        return 8 * value / tx.end.rate_bps if unit == "bytes" else value * _SECONDS[unit] * self._k

    def _check_told_apart(self, raw: Sequence[RawFlow]) -> None:
        """The receiver counts by header fields: those of two flows must differ in a field that both leave constant."""
        by_port: dict[str, list[RawFlow]] = {}
        for flow in raw:
            if flow.rx is None or flow.signature is None:
                continue
            for other in by_port.setdefault(flow.rx.name, []):
                if not flow.signature.distinct(other.signature or flow.signature):
                    why = f"has {flow.name} and {other.name}, whose frames port {flow.rx.name} cannot tell apart"
                    self._root.inside("flows").wrong(why, "give them other addresses, ports or DSCPs")
            by_port[flow.rx.name].append(flow)

    def _roce_flows(self) -> Iterator[RoceFlow]:
        _, groups = self._config["stateful_flows"] or ("rocev2", None)
        base = self._root.inside("stateful_flows").inside("rocev2")
        names, sending = set[str](), set[str]()
        for index, group in enumerate(groups or []):
            for number, each in enumerate(group["tx_ports"]):
                at = base.inside(index).inside("tx_ports").inside(number)
                self._port(each["port_name"], at.inside("port_name"))
                _, asked = each["transmit_type"]
                for place, flow in enumerate(asked["flows"]):
                    where = at.inside("transmit_type").inside("target_line_rate").inside("flows").inside(place)
                    qp = self._qps.get(flow["tx_endpoint"])
                    if qp is None:
                        why = f"is {flow['tx_endpoint']}, which is not a queue pair"
                        where.inside("tx_endpoint").wrong(why, did_you_mean(str(flow["tx_endpoint"]), self._qps))
                        continue
                    if qp.port.name != each["port_name"]:
                        where.inside("tx_endpoint").wrong(f"is {qp.name}, a queue pair of port {qp.port.name}")
                    if flow["name"] in names or qp.name in sending:
                        where.wrong(f"is {flow['name']} of {qp.name}: each name and each queue pair has one flow")
                    names.add(flow["name"])
                    sending.add(qp.name)
                    if (made := self._roce_flow(flow, qp, asked["value"] / 100, where)) is not None:
                        yield made

    def _roce_flow(self, flow: Mapping[str, Any], qp: QpSetting, share: float, at: At) -> RoceFlow | None:
        if ipaddress.ip_address(qp.destination).is_unspecified:  # how testbeds write a port that only receives
            at.note(f"sends nothing: queue pair {qp.name} has no destination ({qp.destination})")
            return None
        rx = next((port for port in self._ports.values() if port.end.ip == qp.destination), None)
        if rx is None or rx is qp.port:
            why = f"sends to {qp.destination}, which is the address of no other port of this configuration"
            at.wrong(why, "use the address of a NIC that a port names")
            return None
        size = flow["message_size"] * _UNITS[flow["message_size_unit"]]
        if size > MOST_MESSAGE:
            at.inside("message_size").wrong(f"is {size} bytes", f"use up to {MOST_MESSAGE}")
            return None
        named = flow["rx_endpoint"]
        if named is not None and named != rx.name:
            peer = self._qps.get(named)
            if peer is None or peer.port is not rx:
                at.inside("rx_endpoint").wrong(f"is {named}, which is not at {qp.destination}")
            else:
                at.inside("rx_endpoint").note(f"is {named}: a queue pair of its own receives at port {rx.name}")
        nic = rx.end.nic
        number = self._responders.get(nic, FIRST_RESPONDER)
        while (nic, number) in self._used:
            number += 1
        self._responders[nic] = number + 1
        verb, data = flow["rocev2_verb"]
        one_way_ns = delay_between(self._delays, qp.port.end, rx.end)
        one_way_s = one_way_ns * self._k * 1e-9
        policy = self._fabric.policy
        timeout_s, retries = self._timer(qp, one_way_ns, at)
        return RoceFlow(
            flow["name"], qp, rx, number, verb, data["immediate_data"] if data else 0, size, share, timeout_s, retries,
            0.0 if policy.delayed_on_links else one_way_s, 2 * one_way_s,
        )  # fmt: skip

    def _timer(self, qp: QpSetting, one_way_ns: int, at: At) -> tuple[float, int]:
        """The timeout of a queue pair, and its retries. Packets take k times as long as in the modelled fabric."""
        setting = qp.port.roce["connection_type"][1]
        if not setting["enable_retransmission_timeout"]:
            return 1e6, 0
        policy = self._fabric.policy
        frame = policy.ib_mtu + LAYOUTS[policy.ip_version].overhead_bytes
        there = Propagation(one_way_ns, one_way_ns, self._k, qp.port.end.rate_bps, frame)
        options = RunOptions(dscp=qp.data["dscp"])
        least = ack_timeout(self._fabric, options, there, len(self._qps) * WINDOW)
        asked = setting["retransmission_timeout_value"] / 1e3
        if asked < least:
            here = f"{least * 1e3:.0f} ms here: links are {self._k} times slower"
            at.note(f"retransmission_timeout_value {asked * 1e3:g} ms is {here}")
        return max(asked, least), setting["retransmission_retry_count"]

    def _captures(self) -> Iterator[tuple[str, CaptureSetting]]:
        seen = set[str]()
        for index, each in enumerate(self._config["captures"]):
            for name in each["port_names"]:
                at = self._root.inside("captures").inside(index).inside("port_names")
                port = self._port(name, at)
                if name in seen:
                    at.wrong(f"names {name}, as another capture does")
                seen.add(name)
                if port is not None:
                    yield name, CaptureSetting(port, each["packet_size"], each["overwrite"])
