"""SONiC's config_db.json: each key is applied or listed, with its line; mistakes name the line of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
from heddle.switch.queues.classes import budget_of
from heddle.traffic.inflight import xoff_not_reached
from heddle_plugins.readers.sonic.configdb import parse_json
from heddle_plugins.readers.sonic.fromsonic import SonicFabric, fabric_yaml, import_sonic
from tests.answers import Answers

QOS = {"Ethernet0": {"pfc_enable": "3"}}
Tables = dict[str, Any]


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import tables, or the text of a file, onto preset tiny."""
    monkeypatch.chdir(tmp_path)

    def one(tables: Tables | str, *overrides: str, onto: str = "tiny") -> SonicFabric:
        text = tables if isinstance(tables, str) else json.dumps(tables, indent=1)
        Path("c.json").write_text(text, encoding="utf-8")
        return import_sonic("c.json", onto, overrides)

    return one


def wrong(imported: Any, tables: Tables | str, *overrides: str, onto: str = "tiny") -> str:
    with pytest.raises(InputError) as caught:
        imported(tables, *overrides, onto=onto)
    return str(caught.value)


def why(found: SonicFabric, key: str) -> str:
    (row,) = [row for row in found.rows if row.key == key and not row.paths]
    return row.why


def wred(**fields: str) -> Tables:
    return {"PORT_QOS_MAP": QOS, "WRED_PROFILE": {"W": {"ecn": "ecn_all", **fields}}}


def test_ecn_thresholds_have_priority_over_those_of_wred_value_by_value(imported: Any) -> None:
    found = imported(wred(green_min_threshold="1000", green_max_threshold="9000", ecn_green_min_threshold="500"))
    assert found.settings["queues.ecn.kmin"] == 500 and found.settings["queues.ecn.kmax"] == 9000
    assert found.settings["queues.ecn.pmax"] == 1  # SONiC's default is 100 %
    assert "ecn_green_min_threshold" in why(found, "WRED_PROFILE|W|green_min_threshold")
    both = imported(wred(green_drop_probability="5", ecn_green_mark_probability="20"))
    assert both.settings["queues.ecn.pmax"] == 0.2


@pytest.mark.parametrize("ecn", ["ecn_none", "ecn_yellow", "ecn_yellow_red"])
def test_a_profile_that_marks_no_green_packets_turns_marking_off(imported: Any, ecn: str) -> None:
    found = imported(wred(ecn=ecn, green_min_threshold="1000"))
    assert found.settings["queues.ecn.enabled"] is False and "queues.ecn.kmin" not in found.settings


def test_queues_above_7_are_not_modelled(imported: Any) -> None:
    maps = {"tc_to_queue_map": "Q", "pfc_to_queue_map": "P", "dscp_to_tc_map": "D", "pfc_enable": "3,4"}
    tables: Tables = {
        "PORT_QOS_MAP": {"Ethernet0": maps},
        "DSCP_TO_TC_MAP": {"D": {"8": "2", "24": "3"}},
        "TC_TO_QUEUE_MAP": {"Q": {"2": "9", "3": "3"}},
        "MAP_PFC_PRIORITY_TO_QUEUE": {"P": {"3": "3", "4": "12"}},
    }
    found = imported(tables)
    for key, queue in (("DSCP_TO_TC_MAP|D|8", 9), ("TC_TO_QUEUE_MAP|Q|2", 9), ("MAP_PFC_PRIORITY_TO_QUEUE|P|4", 12)):
        assert why(found, key) == f"goes to queue {queue}, and classes are 0 to 7"
    assert found.settings["queues.lossless"] == [3]
    maps["pfc_enable"] = "4"
    assert "queues.lossless" not in imported(tables).settings


def test_another_class_has_its_own_curve_and_the_lossless_one_is_for_all(imported: Any) -> None:
    tables = wred(green_min_threshold="1000") | {
        "QUEUE": {"E0|3": {"wred_profile": "W"}, "E0|0": {"wred_profile": "V"}}
    }
    tables["WRED_PROFILE"]["V"] = {"ecn": "ecn_none", "green_min_threshold": "7"}
    tables["WRED_PROFILE"]["U"] = {"ecn": "ecn_all"}
    found = imported(tables)
    assert found.settings["queues.ecn.kmin"] == 1000 and found.settings["queues.ecn.enabled"] is True
    assert not [path for path in found.settings if path.startswith("queues.ecn.classes")]
    assert why(found, "WRED_PROFILE|V|ecn").startswith("ECN is on or off for all classes")
    assert why(found, "WRED_PROFILE|U") == "no queue of a class in use has it"


PG = {"PORT_QOS_MAP": QOS, "BUFFER_PG": {"E0|3-4": {"profile": "P"}}}


def profile(pool: str | None = None, **fields: str) -> Tables:
    pools = {"BUFFER_POOL": {"I": {"type": "ingress", "size": pool}}} if pool else {}
    return {**PG, **pools, "BUFFER_PROFILE": {"P": {"pool": "I", **fields}}}


def test_a_dynamic_threshold_is_alpha_and_xoff_follows_from_the_pool(imported: Any) -> None:
    found = imported(profile("30000000", dynamic_th="1", xoff="50000", xon_offset="3000", size="9000")).settings
    assert found["queues.alpha"] == 2 and found["queues.buffer"] == 30_000_000
    assert found["queues.pfc.xoff"] == 20_000_000 and found["queues.pfc.xon"] == 19_997_000
    assert found["queues.pfc.headroom"] == 50_000 and found["queues.pfc.reserve"] == 9000
    assert "queues.reserve" not in found  # it is of the lossless classes
    assert imported(profile(static_th="30000")).settings["queues.pfc.xon"] == 20_000  # as in tiny: 40 of 60 KB
    static = imported(profile(static_th="90000", xon="20000")).settings
    assert static["queues.pfc.xoff"] == 90_000 and static["queues.pfc.xon"] == 20_000
    alone = imported(profile(dynamic_th="-8", xon_offset="5000")).settings
    assert alone["queues.alpha"] == 1 / 256 and alone["queues.pfc.xon"] == 55_000 and "queues.pfc.xoff" not in alone
    assert "64 is the most" in why(imported(profile(dynamic_th="7")), "BUFFER_PROFILE|P|dynamic_th")


def test_lossy_queues_give_alpha_if_no_lossless_group_does(imported: Any) -> None:
    tables = {
        "BUFFER_QUEUE": {"E0|0": {"profile": "[BUFFER_PROFILE|L]"}},
        "BUFFER_PROFILE": {"L": {"pool": "E", "size": "1518", "dynamic_th": "3"}},
    }
    assert imported(tables).settings == {"queues.reserve": 1518, "queues.alpha": 8}


def test_a_deep_buffer_is_not_applied_and_without_a_lossless_profile_the_largest_pool_is(imported: Any) -> None:
    deep = imported(profile(str(6 << 30), dynamic_th="0"))
    assert deep.settings["queues.alpha"] == 1 and {"queues.buffer", "queues.pfc.xoff"}.isdisjoint(deep.settings)
    assert why(deep, "BUFFER_POOL|I|size").startswith("is above 512 MiB")
    tables = {
        "BUFFER_POOL": {name: {"type": kind, "size": size} for name, kind, size in (
            ("a", "ingress", "2000000"), ("b", "ingress", "3000000"), ("c", "egress", "9000000"))},
        "BUFFER_QUEUE": {"E0|0": {"profile": "L"}},
        "BUFFER_PROFILE": {"L": {"pool": "c", "size": "0", "dynamic_th": "0", "static_th": "5"}},
    }  # fmt: skip
    assert imported(tables).settings == {"queues.buffer": 3_000_000, "queues.reserve": 0, "queues.alpha": 1}


def dynamic(**more: Any) -> Tables:
    """Tables of an NVIDIA switch whose profiles the switch computes."""
    return {
        "PORT_QOS_MAP": {"E0": {"pfc_enable": "3,4"}},
        "BUFFER_POOL": {
            "ingress_lossless_pool": {"type": "ingress", "mode": "dynamic"},
            "egress_lossless_pool": {"type": "egress", "mode": "dynamic", "size": "60817408"},
        },
        "BUFFER_PROFILE": {
            "q_lossy_profile": {"pool": "egress_lossy_pool", "size": "0", "dynamic_th": "3"},
            "ingress_lossless_profile": {"pool": "ingress_lossless_pool", "size": "0", "dynamic_th": "7"},
        },
        "BUFFER_PG": {"E0|3-4": {"profile": "NULL"}},
        "BUFFER_QUEUE": {"E0|0-2": {"profile": "q_lossy_profile"}},
        "DEFAULT_LOSSLESS_BUFFER_PARAMETER": {"AZURE": {"default_dynamic_th": "0", "over_subscribe_ratio": "2"}},
        **more,
    }


def test_the_dynamic_model_gives_the_alpha_of_lossless_classes_and_no_egress_pool(imported: Any) -> None:
    found = imported(dynamic())
    assert found.settings["queues.alpha"] == 1 and "queues.buffer" not in found.settings
    assert why(found, "BUFFER_POOL|ingress_lossless_pool").startswith("has no size: the switch computes it")
    assert why(found, "BUFFER_PROFILE|q_lossy_profile|dynamic_th").startswith("Heddle has one alpha")
    assert why(found, "DEFAULT_LOSSLESS_BUFFER_PARAMETER").startswith("profiles that the switch computes")
    pools = {"P": {"type": "egress", "size": "60817408"}, "lossless": {"type": "ingress", "size": "0"}}
    zero = imported(dynamic(BUFFER_POOL=pools))
    assert "queues.buffer" not in zero.settings and "computes it" in why(zero, "BUFFER_POOL|lossless|size")
    assert "queues.buffer" not in imported(dynamic(BUFFER_POOL={"P": pools["P"]})).settings
    pools["lossless"] = {"type": "ingress", "size": "30000000"}
    whole = imported(dynamic(BUFFER_POOL=pools)).settings
    assert whole["queues.buffer"] == 30_000_000 and whole["queues.pfc.xoff"] == 15_000_000
    assert whole["queues.pfc.xon"] == 10_000_000  # in proportion, as 40 of 60 KB
    without = imported(dynamic(DEFAULT_LOSSLESS_BUFFER_PARAMETER={}))
    assert "queues.alpha" not in without.settings and without.settings["queues.reserve"] == 0
    assert why(without, "BUFFER_PG|E0|3-4|profile") == "no profile"
    model = imported({**dynamic(), "BUFFER_PG": {}, "DEVICE_METADATA": {"localhost": {"buffer_model": "dynamic"}}})
    assert model.settings["queues.alpha"] == 1


def test_a_profile_of_the_dynamic_model_with_a_threshold_of_its_own_has_priority(imported: Any) -> None:
    own = {"own": {"pool": "[BUFFER_POOL|ingress_lossless_pool]", "dynamic_th": "2", "headroom_type": "dynamic",
                   "size": "0"}}  # fmt: skip
    found = imported(dynamic(BUFFER_PROFILE=own, BUFFER_PG={"E0|3-4": {"profile": "[BUFFER_PROFILE|own]"}}))
    assert found.settings["queues.alpha"] == 4 and "queues.pfc.reserve" not in found.settings
    assert "the switch computes it" in why(found, "BUFFER_PROFILE|own|size")


def test_a_size_that_has_the_headroom_in_it_does_not_count_it_twice(imported: Any, answers: Answers) -> None:
    def reserve(fields: dict[str, str]) -> int:
        lossy = {"L": {"pool": "E", "size": "0", "dynamic_th": "3"}}
        tables = profile("47149056", dynamic_th="0", **fields)
        tables["BUFFER_PROFILE"] |= lossy
        found = imported({**tables, "BUFFER_QUEUE": {"E0|0-2": {"profile": "L"}}})
        assert found.settings["queues.pfc.headroom"] == int(fields["xoff"]) and found.settings["queues.reserve"] == 0
        reserve: int = found.settings["queues.pfc.reserve"]
        queues = found.fabric.policy.queues
        assert [queues.reserve_of(n) for n in (0, 3, 6)] == [0, reserve, 0]
        leaf = next(node for node in found.fabric.switches if found.fabric.level_of(node).is_edge)
        budget = budget_of(found.fabric, leaf, queues)
        assert budget.reserved == reserve * len(leaf.ports) and budget.headroom == int(fields["xoff"]) * len(leaf.ports)
        return reserve

    answers(reserve)


def test_a_dump_of_the_data_base_is_the_same_as_the_file(imported: Any) -> None:
    tables = {**dynamic(), **hashed("SRC_IP", "DST_IP")}
    same = imported(tables).settings
    flat = {f"{table}|{name}": fields for table, group in tables.items() for name, fields in group.items()}
    assert imported(flat).settings == same
    flat["SWITCH_HASH|GLOBAL"] = {"ecmp_hash@": "SRC_IP,DST_IP"}
    dump = {key: {"expireat": 1.5, "ttl": -0.001, "type": "hash", "value": fields} for key, fields in flat.items()}
    dump["CONFIG_DB_INITIALIZED"] = {"type": "string", "value": "1", "ttl": -0.001}
    found = imported(dump)
    assert found.settings == same
    typed = f"admin@sonic:~$ sonic-db-dump -n CONFIG_DB -y\n{json.dumps(dump, indent=1)}\nadmin@sonic:~$ "
    shown = imported(typed)
    assert shown.settings == same
    lines = typed.splitlines()
    for row in (row for row in shown.rows if row.key.endswith(("|profile", "|dynamic_th", "|pfc_enable"))):
        assert f'"{row.key.rpartition("|")[2]}"' in lines[row.line - 1]
    assert "c.json:2  PORT|E0: x is not a group of keys" in wrong(
        imported, '{"PORT|E4": {"speed": "1"},\n"PORT|E0": "x"}'
    )
    assert "PORT: x is not a group of keys" in wrong(imported, '{"PORT": "x",\n"PORT|E0": {"speed": "1"}}')


def test_what_pfc_and_ecn_cannot_do_together_or_at_all_is_said_with_both_numbers(imported: Any) -> None:
    large = profile("47149056", dynamic_th="0", xoff="153600")
    (sentence,) = xoff_not_reached(imported(large).fabric)
    assert "pauses a port from 23.6 MB on" in sentence and "4 connections with 64 packets in flight" in sentence
    assert xoff_not_reached(imported(large, "queues.pfc.xoff=1MB", "queues.pfc.xon=9KB").fabric) == ()
    assert xoff_not_reached(imported(large, "queues.pfc.enabled=false").fabric) == ()
    assert xoff_not_reached(imported(large, "queues.alpha=0.01").fabric) == ()  # alpha times the free bytes is less
    tables = {**profile(static_th="60000"), **wred(ecn_green_min_threshold="400000", ecn_green_max_threshold="1600000")}
    (late,) = imported(tables).fabric.policy.queues.late_marks
    assert "from 60KB on" in late and "from 400KB on" in late


def test_ports_that_are_down_do_not_count(imported: Any) -> None:
    tables = {
        "PORT": {"E0": {"admin_status": "up"}, "E4": {"admin_status": "down"}, "E8": {}},
        "PORT_QOS_MAP": {"E4": {"pfc_enable": "4"}, "E8": {"pfc_enable": "4"}, "E0": {"pfc_enable": "3"}},
    }
    assert imported(tables).settings["queues.lossless"] == [3]
    del tables["PORT"]["E0"]
    assert imported(tables).settings["queues.lossless"] == [4]


def test_kinds_of_classes_move_where_the_map_or_a_lossless_class_takes_their_number(imported: Any) -> None:
    one = {"PORT_QOS_MAP": QOS, "DSCP_TO_TC_MAP": {"M": {"0": "0", "48": "0"}}}
    assert imported(one).settings["queues.dscp.48"] == 0 and "queues.control" not in imported(one).settings
    moved = imported({"PORT_QOS_MAP": {"E0": {"pfc_enable": "0,6"}}}).settings
    assert moved["queues.control"] == 7 and moved["queues.best_effort"] == 1


def test_values_that_break_a_rule_of_the_fabric_name_the_line_and_the_key_of_the_file(imported: Any) -> None:
    said = wrong(imported, profile(xon="70000"))
    assert said.startswith("c.json:15  queues.pfc.xon: 70000 (BUFFER_PROFILE|P|xon) is not below xoff, 60KB\n")
    said = wrong(imported, wred(ecn_green_min_threshold="500", ecn_green_max_threshold="400"))
    assert said.startswith("c.json:10  queues.ecn.kmin: 500 (WRED_PROFILE|W|ecn_green_min_threshold) is above kmax")
    assert imported(profile(xon="70000"), "queues.pfc.xoff=100KB").settings["queues.pfc.xon"] == 70_000
    large = imported(profile("30000000", dynamic_th="0", xon="9000"), "queues.pfc.xon=9MB", onto="zone")
    assert large.data["queues"]["pfc"] == {"enabled": True, "xoff": 15_000_000, "xon": "9MB"}
    assert "c.json" in wrong(imported, profile("20000")) and "queues.buffer: 20000" in wrong(imported, profile("20000"))


def test_classes_are_queues_and_hosts_keep_their_dscps(imported: Any) -> None:
    port = {"dscp_to_tc_map": "M", "tc_to_queue_map": "Q", "pfc_to_queue_map": "P", "pfc_enable": "4"}
    tables = {
        "PORT_QOS_MAP": {"E0": port, "E4": {"pfc_enable": "3"}, "E8": {"pfc_enable": "4"}},
        "DSCP_TO_TC_MAP": {"M": {"0": "1", "24": "0", "26": "7", "48": "6", "50": "15"}, "N": {"3": "3"}},
        "TC_TO_QUEUE_MAP": {"Q": {"7": "4", "1": "2"}},
        "MAP_PFC_PRIORITY_TO_QUEUE": {"P": {"4": "5"}},
    }
    found = imported(tables)
    assert found.settings["queues.lossless"] == [5] and found.settings["queues.dscp.24"] == 5
    assert found.settings["queues.best_effort"] == 2 and found.settings["queues.control"] == 6
    assert found.settings["queues.dscp.26"] == 4 and found.settings["queues.weights.4"] == 1
    assert "Heddle's hosts send it with DSCP 24" in why(found, "DSCP_TO_TC_MAP|M|24")
    assert why(found, "DSCP_TO_TC_MAP|M|50") == "goes to queue 15, and classes are 0 to 7"
    assert why(found, "PORT_QOS_MAP|E4|pfc_enable").endswith("they get 4, as 2 ports or entries have")
    assert imported({"PORT_QOS_MAP": {"E0": {"pfc_enable": ""}}}).settings == {"queues.lossless": []}


def test_a_strict_scheduler_is_for_the_control_class_only(imported: Any) -> None:
    tables = {
        "QUEUE": {"E0|3": {"scheduler": "D"}, "E0|0": {"scheduler": "S"}, "E0|6": {"scheduler": "S"}},
        "SCHEDULER": {"D": {"type": "DWRR", "weight": "40", "pir": "9"}, "S": {"type": "STRICT"}},
    }
    found = imported(tables)
    assert found.settings == {"queues.weights.3": 40}
    assert why(found, "QUEUE|E0|0|scheduler").startswith("is STRICT")
    assert why(found, "QUEUE|E0|6|scheduler").startswith("class 6 is the control class")
    assert why(found, "SCHEDULER") == "no queue has a rate of its own"


def test_times_are_multiplied_by_k_and_the_longest_is_said(imported: Any) -> None:
    watchdog = {"PFC_WD": {"E0": {"action": "forward", "detection_time": "200", "restoration_time": "5000"}}}
    found = imported({**watchdog, "PORT": {"E0": {"speed": "1000"}}})  # tiny: 100 Mb/s
    assert found.settings["scale"] == 10
    assert (
        found.settings["queues.pfc.watchdog.detect"] == "2s" and found.settings["queues.pfc.watchdog.restore"] == "50s"
    )
    slow = imported(watchdog)  # k = 4000
    assert slow.settings["queues.pfc.watchdog.detect"] == "100s" == slow.settings["queues.pfc.watchdog.restore"]
    (row,) = [row for row in slow.rows if row.key == "PFC_WD|E0|detection_time"]
    assert row.why == "200 ms x k = 4,000 is 800 s; the longest is 100 s, 8 times sooner"
    own = imported({**watchdog, "PORT": {"E0": {"speed": "400000"}}}, "scale=10")
    assert own.settings["queues.pfc.watchdog.detect"] == "2s" and own.data["scale"] == 10
    assert why(own, "PORT|E0|speed") == "--set scale=10 has priority" and "scale" not in own.settings
    assert "drops or forwards" in why(imported({"PFC_WD": {"E0": {"action": "alert"}}}), "PFC_WD|E0|action")


def hashed(*fields: str, **more: Any) -> Tables:
    return {"SWITCH_HASH": {"GLOBAL": {"ecmp_hash": [*fields], **more}}}


def test_the_most_special_hash_list_of_the_fabrics_ip_version_counts(imported: Any) -> None:
    flow = imported(hashed("DST_IP", "SRC_IP", "INNER_SRC_IP")).settings
    assert flow["routing.ecmp"] == "flow" and flow["routing.hash.fields"] == ["src", "dst"]
    more = {"ecmp_hash_ipv4_rdma": ["SRC_IP", "RDMA_BTH_DEST_QP"], "ecmp_hash_ipv6": ["IPV6_FLOW_LABEL"]}
    assert imported(hashed("SRC_IP", **more)).settings == {"routing.ecmp": "e-ecmp"}
    assert imported(hashed("SRC_IP", **more), "family=ipv6").settings["routing.hash.fields"] == ["flowlabel"]
    assert imported(hashed("SRC_MAC")).settings == {}
    text = {"SWITCH_HASH": {"GLOBAL": {"ecmp_hash": "RDMA_BTH_OPCODE,RDMA_BTH_DEST_QP"}}}
    assert imported(text).settings == {"routing.ecmp": "e-ecmp"}


def test_adaptive_routing_has_priority_over_hashing(imported: Any) -> None:
    ars = {"ARS_OBJECT": {"A": {"assign_mode": "per_flowlet_quality", "flowlet_idle_time": "256"}}}
    found = imported({**ars, **hashed("SRC_IP")})
    assert found.settings == {"routing.ecmp": "adaptive", "routing.hash.gap": "1024ms"}
    assert why(found, "SWITCH_HASH|GLOBAL|ecmp_hash") == "ARS_OBJECT chooses the path, by queue depth"
    ars["ARS_OBJECT"]["B"] = {"assign_mode": "per_packet_quality", "flowlet_idle_time": "2"}
    assert imported(ars).settings == {}
    chosen = imported({**ars, "ARS_PROFILE": {"X": {"default_ars_object": "B", "max_flows": "9"}}})
    assert chosen.settings == {"routing.ecmp": "adaptive", "routing.hash.gap": "1us"}


def test_a_resilient_group_that_does_not_fit_the_hash_is_refused_and_can_be_overridden(imported: Any) -> None:
    tables = {**hashed("SRC_IP", "DST_IP"), "FG_NHG": {"G": {"bucket_size": "64", "match_mode": "route-based"}}}
    assert wrong(imported, tables).startswith(
        "c.json:4  routing.hash.fields: [src, dst] (SWITCH_HASH|GLOBAL|ecmp_hash)"
    )
    assert imported(tables, "routing.resilient=false").settings["routing.hash.buckets"] == 64


def test_a_wrong_file_is_explained(imported: Any, answers: Answers) -> None:
    answers(lambda text: wrong(imported, text))
    assert "nested deeper than 16 levels" in wrong(imported, '{"PORT": ' + "[" * 4000 + "]" * 4000 + "}")
    assert "is not a whole number" in wrong(imported, '{"PORT": {"E0": {\n"speed": ' + "9" * 5000 + "}}}")


def test_lines_are_those_of_the_last_of_two_equal_keys(imported: Any) -> None:
    text = '{"PORT": {\n"E0": {"speed": "1"},\n"E0": {\n"speed": "2000"}}}'
    found = imported(text)
    assert found.settings == {"scale": 20} and found.sources == {"scale": "c.json:4 PORT|E0|speed"}
    assert why(found, "PORT|E0") == "is there again in line 3: the last one counts"
    document, repeated = parse_json(text, "c.json", 100)
    assert document.data == json.loads(text) and repeated == [(("PORT", "E0"), 2, 3)]


def test_every_key_of_every_table_is_in_a_row_and_tables_can_be_in_a_group(imported: Any) -> None:
    tables = json.loads((Path(__file__).parents[2] / "golden/readers/sonic/config_db.json").read_text())
    found = imported({"localhost": tables, "asic0": tables}, onto="zone")
    rows = {row.key for row in found.rows}
    fields = {name for row in found.rows for name in row.value.split(", ")}
    for table, entries in tables.items():
        for entry, values in entries.items():
            for key in values:
                names = {table, f"{table}|{entry}", f"{table}|{entry}|{key}"}
                assert (
                    names & rows or key in fields or any(row.key.startswith(table) and row.more for row in found.rows)
                )
    assert why(found, "asic0") == "the tables of localhost are read"


def test_twenty_thousand_lines_give_few_rows(imported: Any) -> None:
    port = {"speed": "400000", "mtu": "9100", "alias": "x"}
    tables = {
        "PORT": {f"Ethernet{n}": port for n in range(3000)},
        "PORT_QOS_MAP": {f"Ethernet{n}": {"pfc_enable": "3,4"} for n in range(1500)},
        "QUEUE": {f"Ethernet{n}|3-4": {"scheduler": "s"} for n in range(2000)},
        "SCHEDULER": {"s": {"weight": "20"}},
    }
    text = json.dumps(tables, indent=1)
    assert text.count("\n") > 20_000
    found = imported(text)
    assert len(found.rows) < 10
    assert found.settings["queues.weights.4"] == 20


def test_the_written_file_is_the_fabric_with_these_keys(imported: Any, tmp_path: Path) -> None:
    found = imported(wred(ecn_green_min_threshold="500", ecn_green_mark_probability="1"), "name=other")
    file = tmp_path / "new.yml"
    file.write_text(fabric_yaml(found.data, found.sources, ["a line\nwith a break"]))
    spec = load_fabric(str(file)).spec
    assert spec == load_fabric("tiny", overrides=["name=other", *(f"{k}={v}" for k, v in found.settings.items())]).spec
    assert (
        spec.queues.ecn.kmin == 500
        and "kmin: 500  # c.json:10 WRED_PROFILE|W|ecn_green_min_threshold" in file.read_text()
    )


def trimming(**fields: str) -> Tables:
    """Packets of class 1 are trimmed, those of class 0 not; two kinds of ports have maps."""
    bound = {"dscp_to_tc_map": "D", "tc_to_queue_map": "Q", "pfc_enable": ""}
    ports = {"Ethernet0": {**bound, "tc_to_dscp_map": "host"}}
    ports |= {name: {**bound, "tc_to_dscp_map": "spine"} for name in ("Ethernet4", "Ethernet8")}
    profiles = {name: {"size": "0", "packet_discard_action": name} for name in ("trim", "drop")}
    return {
        "SWITCH_TRIMMING": {"GLOBAL": {"size": "512", "dscp_value": "10", "queue_index": "5", **fields}},
        "TC_TO_DSCP_MAP": {"spine": {"5": "13"}, "host": {"5": "20"}},
        "PORT_QOS_MAP": ports,
        "DSCP_TO_TC_MAP": {"D": {"0": "0", "4": "1", "13": "5", "24": "1", "40": "5", "48": "6"}},
        "TC_TO_QUEUE_MAP": {"Q": {"0": "0", "1": "1", "5": "5", "6": "6"}},
        "BUFFER_PROFILE": profiles,
        "BUFFER_QUEUE": {"Ethernet0|0": {"profile": "drop"}, "Ethernet0|1": {"profile": "trim"}},
        "ACL_RULE": {"T|A": {"DSCP": "7", "PACKET_ACTION": "DISABLE_TRIM"},
                     "T|B": {"SRC_IP": "10.0.0.0/8", "PACKET_ACTION": "DISABLE_TRIM"}},
    }  # fmt: skip


def test_trimming_has_sonics_size_dscp_queue_actions_and_exemptions(imported: Any) -> None:
    found = imported(trimming())
    queues = found.fabric.policy.queues
    assert (queues.trimming.size, queues.trimming.dscp, queues.trim_queue) == (512, 10, (5,))
    assert queues.trimming.exempt == (7,) and [n for n in queues.numbers if queues.trims(n)] == [1]
    assert queues.class_of_dscp[24] == 1 and queues.class_of_dscp[10] == 5 and queues.class_of_dscp[40] == 0
    assert why(found, "DSCP_TO_TC_MAP|D|40") == "queue 5 is for trimmed packets only"
    assert why(found, "ACL_RULE|T|B|PACKET_ACTION") == "Heddle exempts packets by their DSCP only"


def test_a_dscp_from_the_traffic_class_tells_the_last_hop_apart(imported: Any) -> None:
    trimmed = imported(trimming(dscp_value="from-tc", tc_value="5", queue_index="dynamic")).fabric.policy.queues
    assert (trimmed.trimming.dscp, trimmed.trimming.last_hop_dscp, trimmed.trim_queue) == (13, 20, (5,))
    left = imported(trimming(dscp_value="from-tc", tc_value="4"))
    assert "needs tc_value" in why(left, "SWITCH_TRIMMING|GLOBAL|dscp_value")
    assert left.fabric.policy.queues.trim_queue == ()
    large = imported(trimming(size="4000"))
    assert why(large, "SWITCH_TRIMMING|GLOBAL|size") == "Heddle trims to 128 to 1024 bytes"


@pytest.mark.parametrize(
    ("key", "value"), [("queue_index", "8"), ("dscp_value", "64"), ("tc_value", "x"), ("size", "0")]
)
def test_wrong_values_of_trimming_name_their_line(imported: Any, key: str, value: str) -> None:
    assert f"SWITCH_TRIMMING|GLOBAL|{key}: {value}" in wrong(imported, trimming(**{key: value}))
