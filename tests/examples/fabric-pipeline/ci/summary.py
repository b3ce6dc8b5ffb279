"""What the collectives of the tests did, as a Markdown table: summary.py RESULTS.xml [BASE.xml].

With two files each cell that differs has both values, those of the base first.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

COLUMNS = {
    "busbw (GB/s, emulated)": "busbw",
    "MMR": "mmr",
    "marked": "marked",
    "pauses": "pauses",
    "dropped": "dropped",
}


def runs_of(path):
    """(test, run) -> the properties of that run, and the state of its test."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        failed = any(case.find(kind) is not None for kind in ("failure", "error"))
        for each in case.iter("property"):
            head, _, rest = each.get("name", "").partition(".")
            run, _, name = rest.partition(".")
            if head == "heddle" and run.removeprefix("run").isdigit():
                properties = found.setdefault((case.get("name"), run), {"state": "FAILED" if failed else "passed"})
                properties[name] = each.get("value")
    return found


def shown(properties, name):
    """The text of a cell. Where the host CPU was the bottleneck, a bandwidth is not that of the fabric."""
    if name == "busbw":
        note = "" if properties["reliable"] == "true" else " (host CPU)"
        return f"{float(properties['busbw']):.4g}{note}"
    if name == "marked" and int(properties.get("packets", 0)):
        return f"{int(properties['marked']) / int(properties['packets']):.1%}"
    if name == "uplink":
        loads = [(float(value), key.split(".")[1]) for key, value in properties.items() if key.endswith("utilisation")]
        return "{1} {0:.0%}".format(*max(loads)) if loads else "-"
    return properties.get(name, "-")


def rows(now, base):
    """A row per run; the base is empty where there is none."""
    for (test, run), properties in now.items():
        before = base.get((test, run), properties)
        cells = [test, properties["collective"]]
        for name in ["ecmp", *COLUMNS.values(), "uplink", "state"]:
            old, new = shown(before, name), shown(properties, name)
            cells.append(new if old == new else f"{old} -> {new}")
        yield cells


def main(results, base=None):
    """Print the table."""
    head = ["test", "collective", "ECMP", *COLUMNS, "fullest uplink", "state"]
    table = [head, ["---"] * len(head), *rows(runs_of(results), runs_of(base) if base and Path(base).exists() else {})]
    print("\n".join(f"| {' | '.join(cells)} |" for cells in table))


main(*sys.argv[1:])
