"""Keys and values that public topologies have, in both runtimes: used, left out with one message, or refused."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import pytest

from heddle.base.problems import InputError
from heddle.lab.imported import frr, imported
from heddle.lab.imported.copy import copy_data
from heddle.lab.imported.grammar import main_process, with_sh
from heddle.lab.imported.imported import import_topology
from heddle.lab.lifecycle import script_of
from heddle.render.dialects import RenderOptions
from heddle.runtimes.netns_topology import read_topology

Write = Callable[[str], Path]

# As netlab writes a lab for containerlab.
NETLAB = """name: netlab
prefix: ""
topology:
  nodes:
    r1:
      mgmt-ipv4: 192.168.121.101
      kind: linux
      restart-policy: 'no'
      image: quay.io/frrouting/frr:10.5.1
      runtime: docker
      group:
      binds: ["x.clab.yml:/etc/frr/daemons"]
    h1:
      kind: linux
      restart-policy: 'no'
      image: python:3.13-alpine
      runtime: docker
      exec: [ip addr add 10.1.1.2/24 dev eth1]
  links:
    - endpoints: ["r1:eth1", "h1:eth1"]
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(text: str) -> Path:
        path = tmp_path / "x.clab.yml"
        path.write_text(text)
        return path

    return make


@pytest.mark.parametrize(
    ("runtime", "said"),
    [
        ("netns", "left out: restart-policy, image, runtime (namespaces use this machine's files and programs)"),
        ("containerlab", "left out: runtime (Heddle's containers run in Docker, containerlab's default)"),
    ],
)
def test_containerlabs_default_engine_is_left_out_with_one_message(runtime: str, said: str, write: Write) -> None:
    made = import_topology(write(NETLAB), runtime)
    assert [note for note in made.notes if "runtime" in note] == [said]
    assert made.description is not None
    assert all("runtime" not in node.passed for node in made.description.nodes.values())


@pytest.mark.parametrize(
    "sections",
    [
        "defaults: {kind: linux, runtime: podman}, nodes: {a: {}}",
        "kinds: {linux: {runtime: podman}}, nodes: {a: {kind: linux}}",
        "groups: {g: {runtime: podman}}, nodes: {a: {kind: linux, group: g}}",
        "nodes: {a: {kind: linux, runtime: podman}}",
    ],
)
def test_another_engine_is_refused_for_containers_and_makes_no_difference_in_namespaces(
    sections: str, write: Write
) -> None:
    path = write(f"name: x\ntopology: {{{sections}}}\n")
    assert any("runtime" in note for note in import_topology(path, "netns").notes)
    with pytest.raises(InputError, match=r"runtime is podman, but Heddle's containers run in Docker\n.*leave it out"):
        import_topology(path, "containerlab")


SED = "sed -i 's/^bgpd=no/bgpd=yes/' /etc/frr/daemons"


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        ("sleep infinity", ""),
        ("/bin/sh", ""),
        ("tail -f /dev/null", ""),
        ('sh -c "tail -f /dev/null"', ""),
        ('ash -c "sleep 9999"', ""),
        ('/bin/bash -c "while true; do sleep 1d; done"', ""),
        ('-c "tail -f /dev/null"', ""),
        ("bash -l", ""),
        ("/usr/lib/frr/docker-start", ""),
        ("/sbin/tini -- /usr/lib/frr/docker-start", ""),
        ("tini -g -- service frr start", ""),
        ('sh -c "/usr/lib/frr/frrinit.sh start; sleep infinity"', ""),
        ('bash -c "/usr/lib/frr/docker-start & wait"', ""),
        ('bash -c "service frr start && exec tail -f /dev/null"', ""),
        (f'sh -c "{SED} && /usr/lib/frr/docker-start"', f"sh -c {quote(SED + ' && /usr/lib/frr/docker-start')}"),
        (f'/bin/bash -ec "{SED}; service frr start; sleep inf"', f"/bin/bash -ec {quote(SED + '; service frr start')}"),
        (f'-c "{SED}; /usr/lib/frr/docker-start"', f"sh -c {quote(SED + '; /usr/lib/frr/docker-start')}"),
        ("sh /start.sh", "sh /start.sh"),
        ("tini -- /usr/bin/env date", "/usr/bin/env date"),
        ('sh -c "sleep 5; ip link set eth1 up"', "sh -c 'sleep 5; ip link set eth1 up'"),
        ('sh -c "cat x | sh"', "sh -c 'cat x | sh'"),
        ('sh -c "date > /tmp/time & sh"', "sh -c 'date > /tmp/time'"),
        ("python3 -m http.server", "python3 -m http.server"),
    ],
)
def test_a_namespace_runs_of_a_containers_command_what_is_not_waiting_and_not_the_start_of_frr(
    command: str, runs: str
) -> None:
    assert main_process(command) == runs


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        ("ash -c 'date > /x'", "sh -c 'date > /x'"),
        ("/bin/ash /start.sh", "sh /start.sh"),
        ("/bin/busybox sh -c date", "sh -c date"),
        ("busybox httpd -p 80", "busybox httpd -p 80"),
        ("ashes -c x", "ashes -c x"),
    ],
)
def test_the_shell_of_alpine_is_sh_in_a_namespace(command: str, runs: str) -> None:
    assert with_sh(command) == runs


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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/sbin/init", "x.clab.yml:2  cmd: /sbin/init starts a whole system, which needs a container of its own"),
        ("--config.file=/etc/loki.yml", "has options only, for the program that the image starts"),
        ("sh /heddle/start.sh", "needs the program /heddle/start.sh, which this machine does not have"),
        ("/heddle/server --now", "needs the program /heddle/server, which this machine does not have"),
        ("heddle-no-such-program", "needs the program heddle-no-such-program"),
        ("sh -c 'a", "no closing quotation"),
        ("{a: b}", "is a group of keys, but must be a command"),
    ],
)
def test_a_main_process_that_a_namespace_cannot_have_is_refused(command: str, said: str, write: Write) -> None:
    value = command if command.startswith("{") else f'"{command}"'
    text = f"name: x\ntopology: {{nodes: {{a: {{kind: linux, cmd: {value}}}, b: {{kind: linux, cmd: {value}}}}}}}\n"
    with pytest.raises(InputError, match=re.escape(said)):
        import_topology(write(text), "netns")


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


def test_what_reaches_this_machine_is_listed_by_key_node_and_value(tmp_path: Path) -> None:
    (directory := tmp_path / "lab" / "sub").mkdir(parents=True)
    (path := directory.parent / "x.clab.yml").write_text(REACHING)
    (tmp_path / "y").write_text("")
    (directory.parent / "link").symlink_to("/etc")
    lines = import_topology(path, "containerlab").warnings
    command = "runs as root of its container, which is no protection for this machine"
    outside = "what is outside the topology's directory"
    assert list(lines) == [
        "privileged: true (a): root of the node is root of this machine",
        "pid-mode: host (a): the node sees and ends this machine's processes",
        "cgroupns-mode: host (a): the node sees this machine's control groups",
        "cap-add: SYS_ADMIN, SYS_RAWIO (a): more rights of root than Docker's default",
        "security-opts: seccomp=unconfined (a): changes what the engine keeps from a node",
        f"binds: /:/host (a): the node can read and write {outside}",
        f"binds: sub/../../y:/etc/frr/y:ro (a): the node can read {outside}",
        f"binds: link:/etc/frr/z (a): the node can read and write {outside}",
        f"binds: ~:/root (a): the node can read and write {outside}",
        f"exec: sh -c 'rm -r /srv' (a, b): {command}",
        f"exec: ip netns exec other reboot (a): {command}",
        f"exec: sysctl -p (a): {command}",
        f"exec: echo ?[2J (a): {command}",
    ]


def test_in_namespaces_commands_are_roots_and_keys_of_containers_have_no_effect(write: Write) -> None:
    node = "{kind: linux, privileged: true, exec: [touch /srv/x], binds: ['/etc/hosts:/etc/hosts']}"
    made = import_topology(write(f"name: x\ntopology: {{nodes: {{a: {node}}}}}\n"), "netns")
    assert list(made.warnings) == [
        "privileged: true (a): has no effect in namespaces, where each command is root of this machine anyway",
        "binds: /etc/hosts:/etc/hosts (a): the node can read what is outside the topology's directory",
        "exec: touch /srv/x (a): runs as root of this machine: it reads all files; what it writes stays in the node",
    ]
    script = script_of(made)
    assert all(f"# {line}\n" in script.split("ip -batch")[0] for line in (*made.warnings, *made.notes))


def test_sockets_disks_and_paths_of_the_kernel_are_no_binds_in_namespaces(write: Write, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "s"))
        (tmp_path / "f").write_text("")
        binds = ["s:/run/docker.sock", "f:/proc/sys/kernel/hostname", "f:/etc", "/dev/null:/dev/null", "f:/no/such/f"]
        with pytest.raises(InputError) as refused:
            import_topology(write(f"name: x\ntopology: {{nodes: {{a: {{kind: linux, binds: {binds}}}}}}}\n"), "netns")
    assert [(problem.what, problem.why) for problem in refused.value.problems] == [
        ("binds: s:/run/docker.sock", "is a socket or device of this machine, which nodes do not get"),
        (
            "binds: f:/proc/sys/kernel/hostname",
            "covers a file of the kernel, which a namespace has in common with this machine",
        ),
        ("binds: f:/etc", f"is not possible: on this machine /etc is a directory, and {tmp_path / 'f'} is a file"),
    ]


PROGRAMS = """name: x
topology:
  defaults: {kind: linux, exec: [heddle-no-such-program --now]}
  nodes:
    a: {exec: ["sh -c 'cp /bin/true /usr/local/bin/heddle-made'", heddle-made, heddle-bound]}
    b: {exec: [/opt/heddle/none, vtysh -c exit, ip link]}
"""


def test_commands_of_programs_that_only_an_image_has_are_refused_once_for_all_nodes(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    text = PROGRAMS.replace("    a: {", "    a: {binds: ['tool:/usr/local/bin/heddle-bound'], ")
    with pytest.raises(InputError) as refused:
        import_topology(path := write(text), "netns")
    (problem,) = refused.value.problems
    assert problem.what == "exec: heddle-no-such-program --now"
    assert (
        problem.why
        == "needs the program heddle-no-such-program, which this machine does not have; the image may have it"
    )
    assert problem.hint == "install it, leave it out, or use --runtime containerlab"
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


def test_nodes_that_route_only_with_their_image_are_named_before_anything_starts(write: Write, tmp_path: Path) -> None:
    (tmp_path / "daemons").write_text("bgpd=yes\n")
    path = write(IMAGES)
    engine = "use --runtime containerlab, which starts the image"
    binds = "the file binds nothing below /etc/frr and no command starts FRR"
    warnings = import_topology(path, "netns").warnings
    assert [line for line in warnings if "namespaces do not use the image" in line] == [
        f"leaf1, leaf2 will not route: {binds}, and namespaces do not use the image example/clab-frr; {engine}",
        "core will not route: the file has several links for it, but no commands and no binds, and namespaces do not "
        f"use the image example/os; {engine}",
        "bare will start FRR without a configuration: the file binds no frr.conf, and no command runs vtysh, and "
        f"namespaces do not use the image quay.io/frrouting/frr:10.2; {engine}",
    ]
    assert not [line for line in import_topology(path, "containerlab").warnings if "namespaces" in line]


LATER = """name: x
topology:
  defaults: {kind: linux, image: "quay.io/frrouting/frr:10.7.1"}
  nodes:
    sw1: {binds: &binds [daemons:/etc/frr/daemons, b:/etc/config/02-bgp, a.sh:/etc/config/01-initial.sh, daemons:/x]}
    sw2: {binds: *binds}
    ran: {binds: *binds, exec: [sh /etc/config/01-initial.sh]}
    read: {binds: *binds, exec: [cat /etc/config/01-initial.sh]}
    h1: {image: alpine, binds: [b:/etc/config/net]}
    h2: {image: alpine, binds: [b:/etc/config/net], exec: [ip addr add 10.1.1.2/24 dev eth1]}
  links:
    - endpoints: ["sw1:eth1", "sw2:eth1"]
"""


def test_scripts_that_no_command_runs_are_named_with_the_commands_that_run_them(write: Write, tmp_path: Path) -> None:
    (tmp_path / "daemons").write_text("bgpd=yes\n")
    (tmp_path / "a.sh").write_text("vtysh -c 'conf t'\n")
    (tmp_path / "b").write_text("#!/bin/bash\ntrue\n")
    made = import_topology(write(LATER), "netns")
    assert made.bare == ("sw1", "sw2", "read") and import_topology(write(LATER), "containerlab").bare == ()
    head = "will not route: no command of the file runs the bound scripts. After up, run on each, as"
    said = [line for line in made.warnings if "scripts" in line]
    assert said == [
        f"sw1, sw2, read {head} ./inv exec sw1 -- sh /etc/config/01-initial.sh; ./inv exec sw1 -- bash "
        "/etc/config/02-bgp",
        f"h1 {head} ./inv exec h1 -- bash /etc/config/net",
    ]


APART = """name: x
topology:
  defaults: {kind: linux}
  nodes:
    leaf1: {binds: [frr.conf:/etc/frr/frr.conf], exec: ["sh -c 'ip addr add 10.3.0.1/24 dev br3'"]}
    leaf2: {binds: [frr.conf:/etc/frr/frr.conf]}
    h1: {exec: [ip addr add 10.1.0.1/24 dev eth1]}
    h2: {exec: [ip addr add 10.1.0.2/24 dev eth1]}
    h3: {exec: [ip addr add 10.2.0.1/24 dev eth1]}
    h4: {exec: [ip addr add 10.3.0.2/24 dev eth1]}
  links:
    - endpoints: ["leaf1:eth1", "h1:eth1"]
    - endpoints: ["leaf2:eth1", "h2:eth1"]
    - endpoints: ["leaf2:eth2", "h3:eth1"]
    - endpoints: ["leaf2:eth3", "h4:eth1"]
"""


def test_hosts_in_whose_subnet_no_switch_has_an_address_are_named(write: Write, tmp_path: Path) -> None:
    (tmp_path / "frr.conf").write_text("interface br2\n ip address 10.0.0.1/24\n ip address 10.2.0.254/24\n")
    (said,) = import_topology(write(APART), "netns").warnings[:1]
    assert said == (
        "h1:eth1, h2:eth1 are in 10.1.0.0/24, behind leaf1, leaf2: the file gives no switch an address there, so no "
        "route to them comes, and up waits for none; an overlay can connect them"
    )


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
