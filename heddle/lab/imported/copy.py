"""Write the copy of an imported topology that runs, complete for both runtimes.

In:  a TopologyDescription and its Fabric, where to write, RenderOptions, the runtime.
Out: NAME.clab.yml, an ordinary containerlab topology, and a start script for FRR where Heddle starts it. All inherited
values are written out for every node, every path is absolute, every link has its MACs; the management network is
Heddle's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml

from heddle.base.problems import machine_errors
from heddle.base.userfiles import as_caller
from heddle.fabric.model import Fabric, Role
from heddle.lab.imported import frr
from heddle.lab.imported.description import NodeDescription, TopologyDescription
from heddle.lab.imported.grammar import as_main, command_lines, literal, text_of
from heddle.lab.lab import Setting
from heddle.render.dialects import (
    HOST_CAPABILITIES,
    NODE_MEMORY,
    PRIVILEGED,
    REPOSITORIES,
    SKIP_WHEN_UNUSED,
    SWITCH_CAPABILITIES,
    RenderOptions,
    image_names,
)
from heddle.render.render import TEMPLATES, mgmt_subnet, topology_name
from heddle.runtimes.clab_deploy import LABEL
from heddle.runtimes.netns_topology import OWN, OWN_FILES, READ_ONLY
from heddle.spec.yamlfile import Word

# zebra sets these when it reads the line (zebra/ipforward_proc.c).
_FORWARDING: Final[Mapping[str, str]] = {"ip": "net.ipv4.ip_forward", "ipv6": "net.ipv6.conf.all.forwarding"}
_FRR_LINE: Final = re.compile(r"^(no[ \t]+)?(ip|ipv6)[ \t]+forwarding[ \t]*$", re.MULTILINE)
_FRR_FILES: Final = ("frr.conf", "zebra.conf")
# Both are one variable (net/ipv4/devinet.c, devinet_sysctl_forward).
_SAME: Final = ("net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding")
_KEY: Final = re.compile(r"net([./][A-Za-z0-9_-]+)+")
_VALUE: Final = re.compile(r"[A-Za-z0-9_\s-]+")
_PROC: Final = "/proc/sys/"


def settings_of(node: NodeDescription) -> dict[str, tuple[Setting, ...]]:
    """Sysctl -> the values that the node's configuration sets: `sysctls` first, then FRR's files, then commands."""
    found: dict[str, dict[Setting, None]] = {}
    own = ((key, value, "sysctls") for key, value in node.sysctls.items())
    lines = (line for command in node.commands for line in command_lines(command, node.sources))
    typed = (row for line in lines for row in _line_settings(line, node.sources))
    for rows, certain in ((own, True), (_frr_settings(node), True), (typed, False)):
        for key, value, source in rows:
            settings = found.setdefault(_SAME[0] if key in _SAME else key, {})
            settings[Setting(" ".join(value.split()), source, certain)] = None
    found |= {key: found[_SAME[0]] for key in _SAME if _SAME[0] in found}
    return {key: tuple(settings) for key, settings in found.items()}


def forwarding(node: NodeDescription) -> dict[str, str]:
    """Sysctl -> value, as FRR's files set it. A container may not write sysctls, but zebra does not write a value that
    is already correct. So a node that starts with these values works.
    """
    return {key: value for key, value, _ in _frr_settings(node)}


def _frr_settings(node: NodeDescription) -> Iterator[tuple[str, str, str]]:
    for file in _FRR_FILES:
        for match in _FRR_LINE.finditer(node.text(file) or ""):
            yield _forwarding(match, f"{file}: {' '.join(match[0].split())}")


def _forwarding(match: re.Match[str], source: str) -> tuple[str, str, str]:
    return _FORWARDING[match[2]], "0" if match[1] else "1", source


def _line_settings(words: list[str], sources: Mapping[str, Path]) -> Iterator[tuple[str, str, str]]:
    if not words:
        return
    program, line = words[0].rpartition("/")[2], " ".join(words)
    if program == "sysctl":
        yield from _assignments(words[1:], line)
        for option, file in pairwise(words):
            if option in ("-p", "--load") and file in sources and (text := text_of(sources[file])) is not None:
                rows = (row.partition("#")[0] for row in text.splitlines())
                yield from _assignments(rows, line)
    elif program == "vtysh":
        yield from (_forwarding(match, line) for word in words if (match := _FRR_LINE.fullmatch(word)))
    elif program in ("echo", "printf"):
        place = next((i for i, word in enumerate(words) if word == ">"), len(words))
        target = words[place + 1] if place + 1 < len(words) else ""
        if target.startswith(_PROC):
            value = " ".join(word for word in words[1:place] if not word.startswith("-"))
            yield from _assignments([f"{target.removeprefix(_PROC)}={value}"], line)


def _assignments(words: Iterable[str], source: str) -> Iterator[tuple[str, str, str]]:
    """`KEY=VALUE`, with dots or slashes; values that a shell would have to expand are skipped."""
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if equals and _KEY.fullmatch(key) and _VALUE.fullmatch(value):
            yield key.replace("/", "."), value, source


_START: Final = "start.sh"
# Set by docker for a container on a machine that forwards, and by containerlab for every node of kind linux.
_SWITCH_SYSCTLS: Final = {"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"}
_NODE_SYSCTLS: Final = {"net.ipv6.conf.all.disable_ipv6": "0"}


def write_copy(
    description: TopologyDescription, fabric: Fabric, out: Path, options: RenderOptions, runtime: str
) -> Path:
    """Write the files into `out`; returns the topology's path. MachineError when they cannot be written."""
    path = out / topology_name(description.name)
    text = copied(description, fabric, out, options, runtime)
    starts = any(heddle_starts(node, runtime) for node in description.nodes.values())
    start = _start_script() if starts else ""
    with machine_errors(str(out)), as_caller(out):
        out.mkdir(parents=True, exist_ok=True)
        if starts:
            (out / _START).write_text(start, encoding="utf-8")
            (out / _START).chmod(0o755)
        path.touch(mode=0o600)  # values of ${VARIABLES} are in it, and these may be secrets
        path.chmod(0o600)
        path.write_text(text, encoding="utf-8")
    return path


def copied(description: TopologyDescription, fabric: Fabric, out: Path, options: RenderOptions, runtime: str) -> str:
    """The text of the topology."""
    data = copy_data(description, fabric, out, options, runtime)
    head = f"# {description.path}, as Heddle runs it: with all inherited values, and absolute paths.\n"
    return literal(head + yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True))


def copy_data(
    description: TopologyDescription, fabric: Fabric, out: Path, options: RenderOptions, runtime: str
) -> dict[str, Any]:
    """The topology as values, before `$` is doubled."""
    defaults: dict[str, Any] = {"privileged": False} if options.takes(PRIVILEGED) else {}
    defaults["restart-policy"] = "no"
    mgmt: dict[str, Any] = {"network": f"heddle-{description.name}"}
    if options.mgmt == "none":
        defaults["network-mode"] = "none"
    if options.mgmt == "none" and options.takes(SKIP_WHEN_UNUSED):
        mgmt["skip-when-unused"] = True
    else:
        mgmt |= {"ipv4-subnet": str(options.subnet or mgmt_subnet(fabric)), "external-access": False}
    defaults["labels"] = {LABEL: description.name}
    if runtime == "netns":
        defaults["labels"][OWN_FILES] = READ_ONLY if description.read_only else OWN
    nodes = {name: _node(node, fabric, out, runtime) for name, node in description.nodes.items()}
    links = [
        {
            "type": "veth",
            "mtu": link.mtu,
            "vars": {"rate_bps": fabric.by_name[link.ends[0].node].port(link.ends[0].interface).rate_bps},
            "endpoints": [
                {
                    "node": end.node,
                    "interface": end.interface,
                    "mac": fabric.by_name[end.node].port(end.interface).mac,
                }
                for end in link.ends
            ],
        }
        for link in description.links
    ]
    return {"name": description.name, "mgmt": mgmt, "topology": {"defaults": defaults, "nodes": nodes, "links": links}}


def heddle_starts(node: NodeDescription, runtime: str) -> bool:
    """True when Heddle starts the node's daemons: neither the image nor a command of the file starts them."""
    return node.frr and not node.starts_itself and (runtime == "netns" or is_heddles(node.image))


def is_heddles(image: str) -> bool:
    """True for Heddle's images, which start no daemons, and for no image at all, when Heddle's is used."""
    return not image or any(image.startswith(f"{name}:") or image == name for name in REPOSITORIES.values())


def _node(node: NodeDescription, fabric: Fabric, out: Path, runtime: str) -> dict[str, Any]:
    switch = fabric.by_name[node.name].role is Role.SWITCH
    starts = heddle_starts(node, runtime)
    binds = [bind.text for bind in node.binds]
    commands = list(node.exec)
    if starts:
        binds.append(f"{out / _START}:{frr.START}:ro")
        commands = _with_start(commands, daemons_by_commands(node))
    if node.main:
        commands = [as_main(node.main, waits=node.frr), *commands]
        if starts and frr.DOCKER_START not in node.sources:
            binds.append(f"{out / _START}:{frr.DOCKER_START}:ro")
    image = node.image or image_names()["switch" if switch else "host"]
    data: dict[str, Any] = {"kind": "linux", "group": node.group, "image": image}
    data["sysctls"] = {**_NODE_SYSCTLS, **(_SWITCH_SYSCTLS if switch else {}), **node.sysctls, **forwarding(node)}
    data |= {"labels": dict(node.labels), "env": dict(node.env), "binds": binds, "exec": commands}
    data["network-mode"] = "none" if node.isolated else ""
    rights = SWITCH_CAPABILITIES if switch or frr.routes(image) else HOST_CAPABILITIES
    data |= {"cap-add": list(rights), "memory": NODE_MEMORY if is_heddles(image) else ""}
    if runtime != "netns":
        data |= {key: value for key, value in node.passed.items() if key != "image"}
        data["cap-add"] = list(dict.fromkeys([*rights, *node.passed.get("cap-add", ())]))
    return {key: value for key, value in data.items() if value not in ("", {}, [])}


def without_admin(node: NodeDescription) -> bool:
    """True for a container with an image of the user's in which FRR could not start, should it have FRR."""
    own = bool(node.image) and not is_heddles(node.image) and not frr.routes(node.image)
    privileged = str(node.passed.get("privileged", "")).lower() == "true"
    return own and not node.frr and not privileged and "SYS_ADMIN" not in node.passed.get("cap-add", ())


def daemons_by_commands(node: NodeDescription) -> tuple[str, ...]:
    """Daemons that Heddle starts because commands configure or enable them: the topology binds no file `daemons`."""
    if frr.bound_file(node.sources, "daemons") is not None:
        return ()
    lines = (" ".join(words) for line in node.commands for words in command_lines(line, node.sources))
    return frr.daemons_in((*node.commands, *lines))


def _with_start(commands: list[str], daemons: tuple[str, ...]) -> list[str]:
    """Insert the start script where the file starts FRR, else after the first `ip` commands.

    An image would start FRR even earlier.
    """
    start = " ".join(["sh", frr.START, *daemons])
    services = [place for place, line in enumerate(commands) if frr.is_service(line)]
    if services:
        return [start if i == services[0] else line for i, line in enumerate(commands) if i not in services[1:]]
    place = next((i for i, line in enumerate(commands) if not line.startswith("ip ")), len(commands))
    return [*commands[:place], start, *commands[place:]]


def _start_script() -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - a shell script that contains only our own words
    )
    return env.get_template("imported/start.sh.j2").render(daemons=frr.DAEMONS, always=frr.ALWAYS, refused=frr.REFUSED)


class _Dumper(yaml.SafeDumper):
    """Values of the file keep their type: a value without quotes is written without quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write repeated values in full, without YAML aliases."""
        return True


def _word(dumper: yaml.SafeDumper, word: Word) -> yaml.Node:
    text = "tag:yaml.org,2002:str"
    tag = dumper.resolve(yaml.ScalarNode, str(word), (True, False)) if word.plain else text  # type: ignore[no-untyped-call]
    return dumper.represent_scalar(tag, str(word))


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """containerlab reads YAML 1.1, where `1_000` and `12:30` are numbers: texts with digits get quotes."""
    style = '"' if any(c.isdigit() for c in text) and not text[:1].isalpha() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(Word, _word)
_Dumper.add_representer(str, _text)
