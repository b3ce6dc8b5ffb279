"""Keys and values that public topologies have, in both runtimes: used, left out with one message, or refused."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.lab.imported import frr, imported
from heddle.lab.imported.copy import copy_data
from heddle.lab.imported.grammar import main_process, with_sh
from heddle.lab.imported.imported import import_topology
from heddle.lab.upscript import script_of
from heddle.render.dialects import RenderOptions
from heddle.runtimes.netns_topology import read_topology
from tests.answers import Answers

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(text: str) -> Path:
        path = tmp_path / "x.clab.yml"
        path.write_text(text)
        return path

    return make


@pytest.mark.parametrize("runtime", ["netns", "containerlab"])
def test_containerlabs_default_engine_is_left_out(runtime: str) -> None:
    made = import_topology(Path(__file__).parents[1] / "golden/topologies/netlab.clab.yml", runtime)
    assert made.description is not None
    assert all("runtime" not in node.passed for node in made.description.nodes.values())


def test_switches_whose_scripts_run_later_are_not_waited_for() -> None:
    later = Path(__file__).parents[1] / "golden/topologies/later.clab.yml"
    assert import_topology(later, "netns").bare == ("sw1", "sw2", "read")
    assert import_topology(later, "containerlab").bare == ()


def test_another_engine_is_refused_for_containers_and_makes_no_difference_in_namespaces(
    write: Write, answers: Answers
) -> None:
    def notes(runtime: str, sections: str) -> str:
        found = import_topology(write(f"name: x\ntopology: {{{sections}}}\n"), runtime).notes
        return "\n".join(note for note in found if "runtime" in note)

    answers(notes)


SED = "sed -i 's/^bgpd=no/bgpd=yes/' /etc/frr/daemons"


def test_a_namespace_runs_of_a_containers_command_what_is_not_waiting_and_not_the_start_of_frr(
    answers: Answers,
) -> None:
    answers(main_process)


def test_the_shell_of_alpine_is_sh_in_a_namespace(answers: Answers) -> None:
    answers(with_sh)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("cmd", "sleep infinity", "left out: cmd (a namespace needs no main process)"),
        ("entrypoint", "[bash, -c, 'sleep 1d']", "left out: entrypoint (a namespace needs no main process)"),
        ("cmd", "date -u", "a background process of a is the container's; its output: exec NODE cat"),
        ("entrypoint", '["sh", "-c", "date; wait"]', "a background process of a is the container's"),
    ],
)
def test_a_main_process_is_left_out_or_started_in_the_background(key: str, value: str, said: str, write: Write) -> None:
    made = import_topology(write(f"name: x\ntopology: {{nodes: {{a: {{kind: linux, {key}: {value}}}}}}}\n"), "netns")
    assert any(note.startswith(said) for note in made.notes), made.notes
    topology = read_topology(made.write(write("").parent / "out", RenderOptions()))
    assert (
        topology.nodes["a"].exec == () if "left out" in said else "/run/heddle-cmd.log" in topology.nodes["a"].exec[0]
    )
    warned = "runs as root of this machine" in " ".join(made.warnings)
    assert warned == ("left out" not in said)


def test_a_main_process_that_a_namespace_cannot_have_is_refused(write: Write, answers: Answers) -> None:
    def started(command: str) -> object:
        value = command if command.startswith("{") else f'"{command}"'
        text = f"name: x\ntopology: {{nodes: {{a: {{kind: linux, cmd: {value}}}, b: {{kind: linux, cmd: {value}}}}}}}\n"
        return import_topology(write(text), "netns")

    answers(started)


# The command of FRR's own image after an edit of its daemons, by name and in a script.
STARTED = """name: x
topology:
  defaults: {kind: linux, image: "quay.io/frrouting/frr:10.3.1"}
  nodes:
    edited: {cmd: "sh -c \\"SED && /usr/lib/frr/docker-start\\"", binds: [frr.conf:/etc/frr/frr.conf]}
    script: {entrypoint: bash, cmd: /setup.sh, binds: [setup.sh:/setup.sh], exec: [ip link set lo up]}
    image: {cmd: /sbin/tini -- /usr/lib/frr/docker-start}
    host: {image: alpine, cmd: "sh -c 'ip addr add 10.1.1.2/24 dev eth1; sleep infinity'"}
  links:
    - endpoints: ["edited:eth1", "script:eth1"]
    - endpoints: ["edited:eth2", "host:eth1"]
""".replace("SED", SED)


def test_frr_that_a_main_process_starts_is_a_switch_with_the_daemons_that_it_enables(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "setup.sh").write_text(f"#!/bin/bash\n{SED.replace('bgpd', 'ospfd')}\nexec /usr/lib/frr/docker-start\n")
    (tmp_path / "frr.conf").write_text("")
    made = import_topology(write(STARTED), "netns")
    assert {node.name for node in made.fabric.switches} == {"edited", "script", "image"}
    assert [str(port.address) for port in made.fabric.by_name["host"].ports] == ["10.1.1.2/24"]
    assert {name: made.daemons(name) for name in ("edited", "script", "image")} == {
        "edited": ("zebra", "bgpd"), "script": ("zebra", "ospfd"), "image": ("zebra",),
    }  # fmt: skip
    nodes = read_topology(made.write(tmp_path / "out", RenderOptions())).nodes
    assert [shlex.split(line)[:2] for line in nodes["script"].exec] == [
        ["sh", "-c"], ["ip", "link"], ["sh", frr.START],
    ]  # fmt: skip
    assert nodes["edited"].exec[1] == f"sh {frr.START} bgpd" and len(nodes["edited"].exec) == 2
    assert [bind.target for bind in nodes["edited"].binds if bind.source.name == "start.sh"] == [
        frr.START, frr.DOCKER_START,
    ]  # fmt: skip
    assert not any(bind.target == frr.DOCKER_START for bind in nodes["image"].binds)
    assert nodes["image"].exec == (f"sh {frr.START}",)
    engine = import_topology(write(STARTED), "containerlab")
    assert {node.name for node in engine.fabric.switches} == {"edited", "script", "image"}
    data = copy_data(engine.description, engine.fabric, Path("/out"), RenderOptions(), "containerlab")  # type: ignore[arg-type]
    assert data["topology"]["nodes"]["edited"]["cmd"] == f'sh -c "{SED} && /usr/lib/frr/docker-start"'


REACHING = """name: x
topology:
  defaults: {kind: linux}
  groups:
    g: {privileged: true, exec: [sh -c 'rm -r /srv']}
  nodes:
    a:
      group: g
      pid-mode: host
      cgroupns-mode: host
      cap-add: [SYS_ADMIN, SYS_RAWIO]
      security-opts: ["seccomp=unconfined"]
      binds: ["/:/host", "sub/../../y:/etc/frr/y:ro", "link:/etc/frr/z", "x.clab.yml:/etc/frr/daemons", "~:/root"]
      exec: [ip link set lo up, ip netns exec other reboot, sysctl -w net.ipv4.ip_forward=1, sysctl -p, "echo \\e[2J"]
    b: {group: g, privileged: false, cgroupns-mode: private}
"""


def test_what_reaches_this_machine_is_listed_by_key_node_and_value(tmp_path: Path, answers: Answers) -> None:
    (directory := tmp_path / "lab" / "sub").mkdir(parents=True)
    (path := directory.parent / "x.clab.yml").write_text(REACHING)
    (tmp_path / "y").write_text("")
    (directory.parent / "link").symlink_to("/etc")
    answers({"warnings": "\n".join(import_topology(path, "containerlab").warnings)})


def test_in_namespaces_commands_are_roots_and_keys_of_containers_have_no_effect(write: Write, answers: Answers) -> None:
    node = "{kind: linux, privileged: true, exec: [touch /srv/x], binds: ['/etc/hosts:/etc/hosts']}"
    made = import_topology(write(f"name: x\ntopology: {{nodes: {{a: {node}}}}}\n"), "netns")
    answers({"warnings": "\n".join(made.warnings)})
    script = script_of(made)
    assert all(f"# {line}\n" in script.split("ip -batch")[0] for line in (*made.warnings, *made.notes))


def test_sockets_disks_and_paths_of_the_kernel_are_no_binds_in_namespaces(
    write: Write, tmp_path: Path, answers: Answers
) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "s"))
        (tmp_path / "f").write_text("")
        binds = ["s:/run/docker.sock", "f:/proc/sys/kernel/hostname", "f:/etc", "/dev/null:/dev/null", "f:/no/such/f"]
        path = write(f"name: x\ntopology: {{nodes: {{a: {{kind: linux, binds: {binds}}}}}}}\n")
        answers(lambda runtime: import_topology(path, runtime))


PROGRAMS = """name: x
topology:
  defaults: {kind: linux, exec: [heddle-no-such-program --now]}
  nodes:
    a: {exec: ["sh -c 'cp /bin/true /usr/local/bin/heddle-made'", heddle-made, heddle-bound]}
    b: {exec: [/opt/heddle/none, vtysh -c exit, ip link]}
"""


def test_commands_of_programs_that_only_an_image_has_are_refused_once_for_all_nodes(
    write: Write, tmp_path: Path, answers: Answers
) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    path = write(PROGRAMS.replace("    a: {", "    a: {binds: ['tool:/usr/local/bin/heddle-bound'], "))
    answers(lambda runtime: import_topology(path, runtime))
    assert import_topology(path, "containerlab").fabric.hosts


IMAGES = """name: x
topology:
  defaults: {kind: linux}
  nodes:
    leaf1: {image: example/clab-frr}
    leaf2: {image: example/clab-frr}
    core: {image: example/os}
    bare: {image: "quay.io/frrouting/frr:10.2", binds: ["daemons:/etc/frr/daemons"]}
    typed: {image: frr/frr, exec: ["vtysh -c 'conf t' -c 'router ospf' -c 'network 10.0.0.0/8 ar 0'"]}
    edited: {exec: ["sed -i s/isisd=no/isisd=yes/ /etc/frr/daemons", service frr start]}
    h1: {image: example/host, exec: [ip addr add 172.16.1.2/24 dev eth1]}
    h2: {image: example/host}
  links:
    - endpoints: ["leaf1:eth1", "core:eth1"]
    - endpoints: ["leaf2:eth1", "core:eth2"]
    - endpoints: ["leaf1:eth2", "h1:eth1"]
    - endpoints: ["leaf2:eth2", "h2:eth1"]
"""


def test_nodes_that_route_only_with_their_image_are_named_before_anything_starts(
    write: Write, tmp_path: Path, answers: Answers
) -> None:
    (tmp_path / "daemons").write_text("bgpd=yes\n")
    path = write(IMAGES)

    def warnings(runtime: str) -> str:
        return "\n".join(line for line in import_topology(path, runtime).warnings if "namespaces" in line)

    answers(warnings)


def test_a_dry_run_says_what_the_kernel_does_not_have_and_a_vrf_reads_no_files(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "ip link add red type vrf table 10"
    made = import_topology(write(f"name: x\ntopology: {{nodes: {{a: {{kind: linux, exec: [{line}]}}}}}}\n"), "netns")
    assert made.warnings == ()
    monkeypatch.setattr(imported, "missing", lambda *kind: f"this kernel has no {kind[0]}")
    assert f"# up fails here: exec: {line} is not possible here: this kernel has no vrf; nodes: a;" in script_of(made)
    beyond = write("name: x\ntopology: {nodes: {a: {kind: linux, exec: [ip vrf exec red reboot]}}}\n")
    assert "runs as root of this machine" in import_topology(beyond, "netns").warnings[0]


def test_commands_decide_which_daemons_heddle_starts_where_no_file_is_bound(write: Write, tmp_path: Path) -> None:
    (tmp_path / "daemons").write_text("bgpd=yes\n")
    made = import_topology(write(IMAGES), "netns")
    assert {switch: made.daemons(switch) for switch in ("bare", "typed", "edited")} == {
        "bare": ("zebra", "bgpd"), "typed": ("zebra", "ospfd"), "edited": ("zebra", "isisd"),
    }  # fmt: skip
    topology = read_topology(made.write(tmp_path / "out", RenderOptions()))
    assert topology.nodes["typed"].exec[0] == f"sh {frr.START} ospfd"
    assert topology.nodes["edited"].exec[1] == f"sh {frr.START} isisd"


def test_only_what_runs_frr_has_sys_admin(write: Write) -> None:
    path = write("""name: x
topology:
  defaults: {kind: linux}
  nodes:
    bound: {image: mine, binds: ["x.clab.yml:/etc/frr/frr.conf"]}
    named: {image: "quay.io/frrouting/frr:10.5.1"}
    heddles: {}
    other: {image: "network-multitool:1"}
    asks: {image: mine, cap-add: [SYS_ADMIN, SYS_PTRACE]}
    full: {image: mine, privileged: true}
""")
    made = import_topology(path, "containerlab")
    assert made.description is not None
    nodes = copy_data(made.description, made.fabric, Path("/out"), RenderOptions(), "containerlab")["topology"]["nodes"]
    plain, admin = ["NET_ADMIN", "NET_RAW"], ["NET_ADMIN", "SYS_ADMIN", "NET_RAW"]
    assert {name: node["cap-add"] for name, node in nodes.items()} == {
        "bound": admin, "named": admin, "heddles": plain, "other": plain, "full": plain,
        "asks": [*plain, "SYS_ADMIN", "SYS_PTRACE"],
    }  # fmt: skip
    assert {name for name, node in nodes.items() if node.get("memory")} == {"heddles"}
    assert [note for note in made.notes if "SYS_ADMIN" in note] == [
        "no SYS_ADMIN, which FRR needs, on other: where the image has FRR, set cap-add: [SYS_ADMIN]"
    ]
