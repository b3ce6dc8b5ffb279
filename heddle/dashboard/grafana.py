"""The Grafana dashboard that comes with Heddle: templates/grafana/heddle.json, made by this module.

In:  nothing. Out: a dashboard as JSON, for Grafana 9 and later, with a Prometheus data source and a lab to choose.
The file is compared with this module by a test, which also checks that every metric in it is exported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

FILE: Final = "heddle.json"
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDE, _HIGH = 12, 8  # of a panel, in the units of Grafana's grid of 24 columns
_OF_LAB: Final = 'lab="$lab"'


@dataclass(frozen=True, slots=True)
class _PanelSpec:
    """One panel. queries: expression and legend of each line. unit: in Grafana's words."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    kind: str = "timeseries"
    text: str = ""


_PANELS: Final = (
    _PanelSpec("Lab", "none", [(f"heddle_lab_up{{{_OF_LAB}}}", "up")], "stat"),
    _PanelSpec(
        "BGP sessions", "none",
        [(f"heddle_bgp_sessions_established{{{_OF_LAB}}}", "established"),
         (f"heddle_bgp_sessions_expected{{{_OF_LAB}}}", "expected")], "stat",
    ),
    _PanelSpec("Links down", "none", [(f"count(heddle_link_up{{{_OF_LAB}}} == 0) / 2 or vector(0)", "links")], "stat"),
    _PanelSpec("PFC processes", "none", [(f"heddle_pfc_agent_up{{{_OF_LAB}}}", "running")], "stat"),
    _PanelSpec(
        "Busiest links", "percentunit",
        [(f"topk(8, sum by (node, port) (rate(heddle_link_bytes_total{{{_OF_LAB}}}[$__rate_interval]))"
          f" / on (node, port) heddle_link_speed_bytes{{{_OF_LAB}}})", "{{node}}:{{port}}")],
        text="Bytes sent, divided by the rate of the link.",
    ),
    _PanelSpec(
        "Deepest queues", "bytes",
        [(f"topk(8, max_over_time(heddle_queue_depth_bytes{{{_OF_LAB}}}[$__interval]))",
          "{{node}}:{{port}} class {{class}}")],
        text="At the moments of the scrapes; ./inv plot queues shows all of a run.",
    ),
    _PanelSpec(
        "ECN marks a second", "pps",
        [(f"topk(8, sum by (node, port) (rate(heddle_ecn_marked_packets_total{{{_OF_LAB}}}[$__rate_interval])))",
          "{{node}}:{{port}}")],
    ),
    _PanelSpec(
        "PFC: share of time paused", "percentunit",
        [(f"topk(8, rate(heddle_pfc_paused_seconds_total{{{_OF_LAB}}}[$__rate_interval]))",
          "{{node}}:{{port}} class {{class}}")],
    ),
    _PanelSpec(
        "PFC pause frames a second", "pps",
        [(f"sum by (node) (rate(heddle_pfc_pauses_sent_total{{{_OF_LAB}}}[$__rate_interval]))", "sent by {{node}}")],
    ),
    _PanelSpec(
        "Dropped packets a second", "pps",
        [(f"sum by (node, class) (rate(heddle_queue_dropped_packets_total{{{_OF_LAB}}}[$__rate_interval]))",
          "{{node}} class {{class}}")],
    ),
    _PanelSpec(
        "Switch buffers in use", "percentunit",
        [(f"heddle_switch_buffer_used_bytes{{{_OF_LAB}}} / heddle_switch_buffer_size_bytes{{{_OF_LAB}}}", "{{node}}")],
    ),
    _PanelSpec(
        "Bus bandwidth of the last run (emulated)", "Bps",
        [(f"heddle_run_bus_bandwidth_bytes_per_second{{{_OF_LAB}}}",
          "run {{run}}: {{collective}}, {{ranks}} ranks, {{qps}} QPs, {{size_bytes}} B")],
    ),
)  # fmt: skip


def dashboard_json() -> str:
    """The whole file."""
    variables = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1},
        {"name": "lab", "label": "Lab", "type": "query", "datasource": _SOURCE, "refresh": 2, "sort": 1,
         "definition": "label_values(heddle_lab_up, lab)",
         "query": {"query": "label_values(heddle_lab_up, lab)", "refId": "labs"}},
    ]  # fmt: skip
    whole = {
        "title": "Heddle: a lab",
        "uid": "heddle-lab",
        "description": "Links, queues, PFC, ECN and BGP of a Heddle lab. All rates are emulated (heddle_scale_factor).",
        "tags": ["heddle"],
        "schemaVersion": 38,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": variables},
        "panels": list(_panels()),
    }
    return json.dumps(whole, indent=1) + "\n"


def _panels() -> Iterator[dict[str, Any]]:
    x = y = 0
    for number, spec in enumerate(_PANELS, 1):
        width, height = (6, 4) if spec.kind == "stat" else (_WIDE, _HIGH)
        yield {
            "id": number,
            "title": spec.title,
            "type": spec.kind,
            "description": spec.text,
            "datasource": _SOURCE,
            "gridPos": {"x": x, "y": y, "w": width, "h": height},
            "fieldConfig": {"defaults": {"unit": spec.unit, "min": 0}, "overrides": []},
            "options": {},
            "targets": [
                {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
                for at, (expr, legend) in enumerate(spec.queries)
            ],
        }
        x += width
        if x >= 24:
            x, y = 0, y + height
