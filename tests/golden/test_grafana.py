"""The Grafana dashboard that comes with Heddle; `./inv test golden -- --regen-goldens` writes it again."""

from __future__ import annotations

import json
import re

from heddle.base.resources import HERE, TEMPLATES
from heddle.dashboard.grafana import FILE, dashboard_json
from heddle.dashboard.metrics import METRICS, NAMES


def test_the_file_is_what_the_module_makes(regen_goldens: bool) -> None:
    path = HERE.content(TEMPLATES) / "grafana" / FILE
    if regen_goldens:
        path.write_text(dashboard_json(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == dashboard_json(), "if you meant it: pytest --regen-goldens"


def test_every_metric_and_label_in_it_is_exported() -> None:
    found = json.loads(dashboard_json())
    labels = {spec.shown: {*spec.labels} for spec in METRICS}
    expressions = [target["expr"] for panel in found["panels"] for target in panel["targets"]]
    expressions += [each["definition"] for each in found["templating"]["list"] if "definition" in each]
    for expr in expressions:
        names = re.findall(r"\b(?:heddle|nccl)_[a-z_]+", expr)
        assert names, expr
        assert set(names) <= set(NAMES), expr
        for by in re.findall(r"(?:by|on) \(([a-z, ]+)\)", expr):
            assert set(by.split(", ")) <= set.intersection(*(labels[name] for name in names)), expr
    for panel in found["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"\bheddle_[a-z_]+", target["expr"])
            used = set(re.findall(r"\{\{([a-z_]+)\}\}", target["legendFormat"]))
            assert used <= set.union(*(labels[name] for name in names)), panel["title"]


def test_no_two_panels_are_drawn_at_one_place() -> None:
    panels = json.loads(dashboard_json())["panels"]
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
