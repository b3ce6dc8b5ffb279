"""The pages of the manual that are generated from the code: the reference, and the glossary.

In:  names, values and defaults of the code; texts of docs/site/meanings.yml by these names. ValueError for a name that
is missing there, and for one that the code does not have.
Out: PAGES, name of a page -> the function that makes its text. `./inv docs --write` writes them, and `./inv docs
--check` and tests/golden/test_reference_pages.py compare them.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from heddle.base.declared import options_of
from heddle.base.units import format_duration, format_rate, format_size, shown
from heddle.base.variables import VARIABLES
from heddle.cli.assistant import arguments_of
from heddle.cli.endings import EXIT_CODES
from heddle.cli.explain_verb import glossary
from heddle.cli.program import commands_in, example_line, examples, help_rows
from heddle.cli.verbs import GROUPS, Command
from heddle.endpoints.congestion.controlled import CONTROLLERS
from heddle.endpoints.congestion.dcqcn import PROFILES
from heddle.endpoints.congestion.ratecontrol import NicFacts
from heddle.lab.faults.registry import KINDS
from heddle.spec import impairments
from heddle.spec.keys import Duration, Rate, Size, Takes
from heddle.spec.schema import FabricSpec
from heddle.spec.shapes import DEFAULT, SHAPES
from heddle.spec.wording import PATTERNS, model_in
from heddle.traffic.admission import ADMISSION_TUNABLES
from heddle.traffic.collectives import patterns
from heddle.traffic.tunables import Tunable

DOCS: Final = Path(__file__).resolve().parents[1]
MADE = "<!-- Generated from the code: ./inv docs --write -->"


def _size(value: int) -> str:
    if value >= 10_000 and value % 1000 == 0:
        return shown(value)
    return format_size(value) if value >= 10_000 and value % 1024 == 0 else f"{value}"


_UNITS = ((Size, "a size", _size), (Rate, "a rate", format_rate), (Duration, "a duration", format_duration))


@cache
def _meanings() -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load((DOCS / "site/meanings.yml").read_text(encoding="utf-8"))
    return found


def _texts(part: str, names: Collection[str]) -> Mapping[str, Any]:
    """A part of meanings.yml, which must have these names and no other."""
    texts: Mapping[str, Any] = _meanings()[part]
    if odd := set(texts) ^ set(names):
        raise ValueError(f"docs/site/meanings.yml, {part}: missing, or not in the code: {', '.join(sorted(odd))}")
    return texts


def _rows(part: str, names: Collection[str], rows: Sequence[Sequence[str]], *, exactly: bool = True) -> None:
    """ValueError unless the first cells of the rows name all of these. exactly: and no other."""
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    if odd := (named ^ set(names)) if exactly else set(names) - named:
        raise ValueError(f"docs/site/meanings.yml, {part}: missing, or not in the code: {', '.join(sorted(odd))}")


def _page(title: str, about: str, *lines: str) -> str:
    return "\n".join([MADE, "", f"# {title}", "", about, "", *lines, ""])


def _verbs() -> Mapping[str, Command]:
    import tasks

    return commands_in(vars(tasks))


def verbs_page() -> str:
    """Each verb: usage, text, words and flags, examples."""
    commands = _verbs()
    lines = [MADE, "", "# Verbs", ""]
    lines += ["This page lists every verb and flag. `./inv VERB --help` prints the same.", ""]
    for group in GROUPS:
        verbs = ((f"[`{n}`](#{n})", _first(each)) for n, each in commands.items() if each.verb.group == group)
        lines += [f"**{group}**", "", *_table(("verb", "does"), verbs), ""]
    for name, command in commands.items():
        text = command.text.split("\n", 1)
        lines += ["", f"## {name}", "", "```text", command.verb.usage, "```", "", _prose(text[0])]
        lines += ["", _prose(inspect.cleandoc(text[1]))] if text[1:] else []
        for heading, flags in help_rows(command.verb).items():
            head = "argument or flag" if heading == "Arguments and flags" else heading
            lines += ["", *_table((head, "does"), ((f"`{w}`", _prose(t)) for w, t in flags))]
        lines += ["", "```sh"]
        shown = examples()[name].items()
        lines += [line for words, does in shown for line in (f"# {does}", example_line(name, words))]
        lines += ["```"]
    return "\n".join([*lines, ""])


def keys_page() -> str:
    """Each key of a fabric file: its meaning, what it takes, and its default."""
    common = dict(_keys(FabricSpec))
    shapes = ". ".join(f"`{name}`: {spec.model_fields['shape'].description}" for name, spec in SHAPES.items())
    common["shape"] = SHAPES[DEFAULT].model_fields["shape"], shapes
    lines = [MADE, "", "# Keys of a fabric file", ""]
    lines += ["This page lists each key of a [fabric file](fabric-file.md) with its values and its default.", ""]
    lines += ["## All shapes", "", *_key_table(common.items())]
    for name, spec in SHAPES.items():
        own = {path: field for path, field in _keys(spec) if path not in common}
        lines += ["", f"## shape: {name}", "", *_key_table(own.items())]
    return "\n".join([*lines, ""])


def codes_page() -> str:
    """Exit codes, and variables."""
    lines = [MADE, "", "# Exit codes and environment variables", ""]
    lines += ["This page lists what a script can test after a verb, and what changes where Heddle keeps files.", ""]
    lines += ["## Exit codes", "", *_table(("code", "meaning"), ((f"{c}", t) for c, t in sorted(EXIT_CODES.items())))]
    lines += ["", "`exec` returns the exit code of its command. With `--format json`, an error is JSON on stdout, too."]
    rows = ((f"`{each.name}`", each.sets, each.unset) for each in VARIABLES)
    lines += ["", "## Environment variables", "", *_table(("variable", "sets", "when it is not set"), rows)]
    return "\n".join([*lines, ""])


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]


def _first(command: Command) -> str:
    return _prose(command.text.split("\n")[0])


def _prose(text: str) -> str:
    """A text of the help as Markdown: pages are links, and no character has another meaning."""
    return re.sub(r"docs/([a-z-]+)\.md", r"[\1](\1.md)", re.sub(r"[*<]", r"\\\g<0>", text))


def _keys(model: type[BaseModel], before: str = "", usual: str = "") -> Iterator[tuple[str, tuple[FieldInfo, str]]]:
    """Path -> field and meaning; a key without a meaning of its own has that of its group."""
    for key, field in model.model_fields.items():
        meaning = field.description or usual
        if inner := model_in(field.annotation):
            yield from _keys(inner, f"{before}{key}.", meaning)
        else:
            yield before + key, (field, meaning)
    if model.model_config.get("extra") == "allow":
        values = typing.get_args(typing.get_type_hints(model, include_extras=True)["__pydantic_extra__"])[1]
        field = FieldInfo.from_annotated_attribute(values, None)
        yield f"{before}LEVEL", (field, field.description or "")


def _key_table(keys: Iterable[tuple[str, tuple[FieldInfo, str]]]) -> list[str]:
    shapes = ", ".join(f"`{name}`" for name in SHAPES)
    rows = []
    for path, (field, meaning) in keys:
        if not meaning:
            raise ValueError(f"{path} of the fabric file has no description in the code")
        takes = shapes if path == "shape" else _takes(field.annotation, field.metadata)
        rows.append((f"`{path}`", meaning, takes, _default(field)))
    return _table(("key", "meaning", "takes", "default"), rows)


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "needed"
    if value is None or value == {}:
        return "none"
    for kind, _, text in _UNITS:
        if typing.get_args(kind)[1] in field.metadata:
            return f"`{text(value)}`"
    word = f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
    return "`" + word.replace("'", "") + "`"


def _takes(annotation: Any, metadata: Sequence[Any] = ()) -> str:  # noqa: PLR0911  (one for each kind of type)
    """What a key accepts, in words."""
    metadata = [part for each in metadata for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
    for each in metadata:
        if isinstance(each, Takes):
            return each.words
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _takes(inside[0], inside[1:])
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in inside)
    if origin is list:
        return f"a list, each value {_takes(inside[0])}"
    if origin in (dict, Mapping):
        return f"a map, each value {_takes(inside[1])}"
    if inside:
        return ", or ".join(_takes(each, metadata) for each in inside if each is not type(None))
    if group := model_in(annotation):
        return f"a map of {', '.join(f'`{key}`' for key in group.model_fields)}"
    pattern = next((found for m in metadata if (found := getattr(m, "pattern", None))), None)
    if pattern:
        return f"a text: {PATTERNS[pattern].removeprefix('use ')}"
    for kind, word, text in _UNITS:
        if typing.get_args(kind)[1] in metadata:
            return _within(word, metadata, text)
    words = {bool: "`true`, `false`", int: "a whole number", float: "a number", str: "a text"}
    return _within(words[annotation], metadata, lambda value: f"{value:,}")


def _within(word: str, metadata: Sequence[Any], text: Any) -> str:
    low, above, high = (next((getattr(m, n) for m in metadata if hasattr(m, n)), None) for n in ("ge", "gt", "le"))
    if low is not None and high is not None:
        return f"{word} from {text(low)} to {text(high)}"
    if above is not None and high is not None:
        return f"{word} above {text(above)}, up to {text(high)}"
    return f"{word}, at least {text(low)}" if low is not None else word


def glossary_page() -> str:
    """The terms of docs/glossary.yml, by topic."""
    lines: list[str] = []
    topic = ""
    for term in glossary():
        if term.topic != topic:
            topic = term.topic
            lines += [
                "",
                f"## {topic}",
                "",
                "| term | meaning | why it matters | shown by | more |",
                "|---|---|---|---|---|",
            ]
        name = f'<a id="{term.word}"></a>**{term.name}**' + (f" ({', '.join(term.also)})" if term.also else "")
        page = term.more.partition("#")[0].removesuffix(".md")
        lines += _table((name, term.says, term.why, term.see, f"[{page}]({term.more})"), ())[:1]
    return _page(
        "Glossary", "This page lists the terms that Heddle uses. `./inv explain TERM` prints an entry.", *lines[1:]
    )


def parameters_page() -> str:
    """Parameters of congestion control and admission, with their sources."""
    dcqcn = CONTROLLERS["dcqcn"].tunables
    sources = _texts("dcqcn", [each.name for each in dcqcn])
    lines = ["Set one with `--cc-set NAME=VALUE`; it overrides the profile. Values are in units of the hardware.", ""]
    lines += ["## DCQCN", ""]
    lines += _table(("parameter", "default", "range", "meaning", "from"), ((*_row(t), sources[t.name]) for t in dcqcn))
    lines += ["", *_table(("", "source"), _meanings()["sources"].items()), ""]
    values = PROFILES["default"](NicFacts(line_mbps=400_000, frame_bytes=4154, rtt_us=0)).values
    reasons = _meanings()["default_profile"]
    _rows("default_profile", set(values), reasons)
    lines += ["## The default profile", ""]
    lines += ["L is the line rate, F the time of a full frame, R the longest round trip (`link.delay`).", ""]
    shown = (
        (name, rule, ", ".join(f"{values[n]:,}" for n in re.findall(r"`([^`]+)`", name)), why)
        for name, rule, why in reasons
    )
    lines += [*_table(("parameter", "value", "at 400 Gb/s", "reason"), shown), "", "## Swift", ""]
    lines += _table(("parameter", "default", "range", "meaning"), map(_row, CONTROLLERS["swift"].tunables))
    lines += ["", "## NSCC", ""]
    lines += ["`network_rtt`, `base_rtt`, `target` and `fast_delay` follow from the NIC; these are for 100 Gb/s.", ""]
    lines += _table(("parameter", "default", "range", "meaning"), map(_row, CONTROLLERS["nscc"].tunables))
    lines += ["", "## Admission", "", "Set one with `--admission-set NAME=VALUE`.", ""]
    lines += _table(("parameter", "default", "range", "meaning"), map(_row, ADMISSION_TUNABLES))
    return _page(
        "Parameters of congestion control and admission",
        "This page lists each parameter with its default and its range.",
        *lines,
    )


def _row(each: Tunable) -> tuple[str, str, str, str]:
    unit = f" {each.unit}" if each.unit else ""
    high = "line rate" if each.line else f"{each.high:.10g}"
    return f"`{each.name}`", f"{each.default:g}{unit}", f"{each.low:g} to {high}", each.text


def faults_page() -> str:
    """Kinds of faults, and faults of packets."""
    rows = (
        (f"`{name}`", kind.at, kind.does, ", ".join(f"`{key}`" for key in kind.settings) or "-")
        for name, kind in KINDS.items()
        if name != impairments.PACKETS
    )
    packets = ((f"`{each.key}`", each.unit, each.help, each.by) for each in impairments.KINDS.values())
    lines = ["`./inv fault KIND PORT` sets one ([faults](faults.md)). `session` is a link between two switches.", ""]
    lines += [
        *_table(("kind", "set on", "what happens", "values"), rows),
        "",
        "## Faults of packets",
        "",
    ]
    lines += _table(("key", "value", "what happens", "by"), packets)
    return _page("Kinds of faults", "This page lists the faults that Heddle can set on purpose.", *lines)


def causes_page() -> str:
    """Causes of a diagnosis, in their order."""
    from heddle_plugins.engineering.diagnosis.diagnosis import CAUSES

    texts = _texts("causes", CAUSES)
    rows = ((f"`{name}`", texts[name][0], texts[name][1], f"`{check.nika}`") for name, check in CAUSES.items())
    lines = [
        "They are reported in this order ([diagnosis](diagnose.md)). The last column is the name of benchmark NIKA.",
        "",
    ]
    return _page(
        "Causes",
        "This page lists the causes that `./inv diagnose` knows.",
        *lines,
        *_table(("cause", "object", "evidence", "NIKA"), rows),
    )


def metrics_page() -> str:
    """Metrics for Prometheus."""
    from heddle_plugins.dashboard import metrics

    rows = (
        (f"`{each.shown}`", "counter" if each.counter else "gauge", each.help, ", ".join(each.labels))
        for each in metrics.METRICS
    )
    inspector = (
        (f"`{name}`", ", ".join(labels))
        for names, labels in (
            (metrics.INSPECTOR, metrics.COLLECTIVE_LABELS),
            (metrics.INSPECTOR_P2P, metrics.P2P_LABELS),
        )
        for name in names
    )
    lines = ["`node` and `port` are the end that sends. Rates are emulated.", ""]
    lines += [*_table(("metric", "type", "meaning", "labels"), rows), "", "## NCCL Inspector", ""]
    lines += ["The last run of each lab. The second pair is for communicators of two ranks only.", ""]
    lines += _table(("metric", "labels"), inspector)
    return _page("Metrics", "This page lists the metrics of [the dashboard](dashboard.md).", *lines)


def record_page() -> str:
    """Keys of a stored run."""
    lines = ["## run.json", "", *_table(("key", "value"), _meanings()["run_json"])]
    lines += ["", "## evidence.json", "", *_table(("key", "value"), _meanings()["evidence_json"])]
    return _page("Keys of a stored run", "This page lists the keys of the files of a [run](runs.md).", *lines)


def pytest_page() -> str:
    """Fixtures, assertions, options and properties of the pytest plugin."""
    from heddle_plugins.testing import assertions, plugin
    from heddle_plugins.testing.testsession import FIXTURES

    lines = ["## Fixtures", ""]
    lines += _table(("fixture", "gives"), ((f"`{n}`", _about(getattr(plugin, n))) for n in (*FIXTURES, "heddle_pool")))
    found = [(name, each) for name, each in vars(assertions).items() if name.startswith("assert_")]
    lines += ["", "## Assertions", "", "All are in `heddle.testing`. Limits are inclusive.", ""]
    lines += _table(
        ("assertion", "passes when"), ((f"`{name}({_arguments(each)})`", _about(each)) for name, each in found)
    )
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    options = [option for group in parser._groups for option in group.options]
    lines += [
        "",
        "## Options",
        "",
        *_table(("option", "effect"), ((f"`{o.names()[0]}`", o.attrs()["help"]) for o in options)),
    ]
    lines += ["", "## Properties in JUnit XML", "", "`N` counts the runs of a test from 1.", ""]
    lines += _table(("property", "value"), _meanings()["junit"])
    return _page("pytest API", "This page lists what the pytest plugin has ([tests](testing.md)).", *lines)


def _about(each: object) -> str:
    return " ".join((inspect.getdoc(each) or "").split("\n\n")[0].split())


def _arguments(each: Callable[..., object]) -> str:
    return ", ".join(
        p.name if p.default is p.empty else f"{p.name}={p.default!r}"
        for p in inspect.signature(each).parameters.values()
    )


def tools_page() -> str:
    """Tools for assistants."""
    rows = (
        (
            f"`{name}`",
            ", ".join(f"`{word}`" for word in arguments_of(each.verb)) or "-",
            each.verb.tool.does,
            "`--allow-run`" if each.verb.tool.changes else "",
        )
        for name, each in _verbs().items()
        if each.verb.tool is not None
    )
    return _page(
        "Tools for assistants",
        "This page lists the tools of `./inv mcp` ([assistants](assistants.md)).",
        *_table(("tool", "arguments", "result: the JSON document of the verb", "needs"), rows),
    )


def figures_page() -> str:
    """Figures and measures of experiments."""
    from heddle.runs.figures import FIGURES, figures_with
    from heddle_plugins.experiments.measures import MEASURES

    heads = {
        "Figures of a size": figures_with("size"),
        "Figures of a live run": figures_with("run"),
        "Figures of links": figures_with("links"),
        "Figures of a prediction": figures_with("predicted"),
    }
    lines = []
    for title, names in heads.items():
        figures = ((f"`{name}`", FIGURES[name].unit or "-", FIGURES[name].text) for name in names)
        lines += [f"## {title}", "", *_table(("figure", "unit", "meaning"), figures), ""]
    lines += ["## Measures", ""]
    rows = (
        (
            f"`{n}`",
            m.about,
            "; ".join(f"`{f}`: {t}" for f, t in m.figures.items()),
            ", ".join(f"`{o}`" for o in m.options),
        )
        for n, m in MEASURES.items()
    )
    return _page(
        "Figures and measures",
        "This page lists what an expression of an [experiment](experiments.md) can use. A live run also has the\n"
        "counters of its transport: `retransmitted`, `timeouts`, `cnps_sent` and others. A prediction also has the\n"
        "figures of links.",
        *lines,
        *_table(("measure", "is", "figures", "options"), rows),
    )


def sonic_page() -> str:
    """Tables and keys of SONiC's configuration that are applied."""
    from heddle_plugins.readers.sonic.convert import READ

    rows = _meanings()["sonic"]
    _rows("sonic", set(READ) - {"SWITCH_TABLE"}, [row for row in rows if row[0]])
    return _page(
        "SONiC keys",
        "This page lists which keys of a SONiC switch are applied ([import](sonic.md)).",
        *_table(("table", "key", "in the fabric file"), rows),
    )


def algorithms_page() -> str:
    """Collectives and algorithms: pairs, factors, bounds, parameters."""
    kinds = patterns(of_files=True)
    texts = _texts("collectives", [f"{collective}/{algorithm}" for collective, algorithm in kinds])
    rows = ((f"`{c}`", f"`{a}`", *texts[f"{c}/{a}"]) for c, a in kinds)
    lines = [
        "The first algorithm of a collective is its default. Ranks are counted modulo n; by chunk: n equal chunks.",
        "",
    ]
    lines += [*_table(("collective", "algorithm", "pairs of ranks", "size"), rows), "", "## Factors of busbw", ""]
    lines += [
        *_table(("collective", "factor for n ranks", "a rank sends"), _meanings()["factors"]),
        "",
        "## Volume and bound",
        "",
    ]
    lines += [
        "n ranks have arrays of S bytes and NICs of B bytes/s; h hosts have g ranks each. log2(n) is rounded up.",
        "",
    ]
    lines += [
        *_table(
            ("collective", "algorithm", "all ranks send", "the busiest rank", "highest busbw"), _meanings()["bounds"]
        ),
        "",
        "## Parameters",
        "",
    ]
    named = {each.name for kind in kinds.values() for each in options_of(type(kind))}
    parameters = _texts("parameters", named)
    lines += _table(("parameter", "flag", "of", "values"), ((f"`{n}`", *cells) for n, cells in parameters.items()))
    return _page("Algorithms", "This page lists which ranks of a [collective](collectives.md) send to which.", *lines)


def units_page() -> str:
    """Keys of a workshop unit, and the facts of each look."""
    from heddle_plugins.workshop.observe import FACTS
    from heddle_plugins.workshop.unitspec import StepSpec, UnitSpec

    texts = _meanings()
    _rows("unit", [*UnitSpec.model_fields], texts["unit"], exactly=False)
    _rows("step", [*StepSpec.model_fields], texts["step"], exactly=False)
    for look, facts in FACTS.items():
        (row,) = (each for each in texts["looks"] if each[0] == f"`{look}`")
        if odd := set(re.findall(r"`([a-z_]+)`", row[2])) ^ set(facts):
            raise ValueError(f"docs/site/meanings.yml, looks, {look}: {', '.join(odd)}")
    lines = [
        "## lab.yml",
        "",
        *_table(("key", "meaning"), texts["unit"]),
        "",
        *_table(("key of a step", "meaning"), texts["step"]),
    ]
    lines += [
        "",
        *_table(("look", "`of`", "facts"), texts["looks"]),
        "",
        "## solution.yml",
        "",
        *_table(("key", "meaning"), texts["solution"]),
    ]
    return _page("Keys of a workshop unit", "This page lists the keys of a [unit](writing-units.md).", *lines)


def experiment_keys_page() -> str:
    """Keys of an experiment file."""
    from heddle_plugins.experiments.spec import CheckSpec, ExperimentSpec, RunSpec

    lines: list[str] = []
    parts: Mapping[str, tuple[str, type[BaseModel]]] = {
        "experiment": ("The file", ExperimentSpec),
        "run": ("A run", RunSpec),
        "check": ("A check", CheckSpec),
    }
    for part, (title, model) in parts.items():
        rows = _meanings()[part]
        _rows(part, set(model.model_fields) - {"about"}, rows, exactly=False)
        lines += [f"## {title}", "", *_table(("key", "meaning"), rows), ""]
    return _page("Keys of an experiment", "This page lists the keys of an [experiment](experiments.md).", *lines[:-1])


def workload_keys_page() -> str:
    """Keys of a workload file beside the options of a run."""
    heads = {"jobs": "A job, beside the options of a run", "steps": "A step", "traces": "A trace"}
    lines: list[str] = []
    for part, title in heads.items():
        lines += [f"## {title}", "", *_table(("key", "meaning", "default"), _meanings()[part]), ""]
    return _page("Keys of a workload", "This page lists the keys of a [workload file](workloads.md).", *lines[:-1])


def published_page() -> str:
    """Claims of a paper, and what was measured."""
    from tests.golden.experiments import reproducedpage

    about = "This page lists each claim of [SIGCOMM 2024](reproduce.md), with the committed results."
    return _page("Published results: all claims", about, reproducedpage.page(reproducedpage.results()))


def agreement_page() -> str:
    """The forecast of time against all that it was compared with: docs/results/agreement.csv."""
    from tests.bench import agreement

    rows = agreement.read_rows()
    simai = ["SimAI", "all", "-", "-", "-", "no times are in its repository; its paper states 98.1 % on average"]
    return _page(
        "Agreement of forecasts", _meanings()["agreement"].strip(),
        *_table(("fabric", "case", "arithmetic", "live", "htsim", "SimAI"), [*agreement.cells(rows), simai]), "",
        *agreement.summary(rows), "",
        *_table(("packets instead of flows", "live / flows", "cause"), _meanings()["agreement_causes"]),
    )  # fmt: skip


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "verbs": verbs_page,
    "fabric-keys": keys_page,
    "exit-codes-and-variables": codes_page,
    "cc-parameters": parameters_page,
    "fault-kinds": faults_page,
    "causes": causes_page,
    "metrics": metrics_page,
    "run-json": record_page,
    "pytest-api": pytest_page,
    "mcp-tools": tools_page,
    "figures": figures_page,
    "sonic-keys": sonic_page,
    "algorithms": algorithms_page,
    "unit-keys": units_page,
    "glossary": glossary_page,
    "sigcomm24": published_page,
    "experiment-keys": experiment_keys_page,
    "workload-keys": workload_keys_page,
    "agreement": agreement_page,
}


def stale() -> list[str]:
    """The generated pages that are missing, or differ from what the code says, by name."""
    paths = ((name, DOCS / f"{name}.md", made) for name, made in PAGES.items())
    return [name for name, path, made in paths if not path.is_file() or path.read_text(encoding="utf-8") != made()]


def write() -> None:
    """Write all generated pages."""
    for name, made in PAGES.items():
        (DOCS / f"{name}.md").write_text(made(), encoding="utf-8")
