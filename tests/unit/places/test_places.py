"""Where verbs run: what is typed or set, what a verb becomes when it is sent elsewhere, what of the project goes."""

from __future__ import annotations

import inspect
import io
import json
import os
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko import HostKeys

from heddle.base.files import place_flag, real, result_name
from heddle.base.problems import InputError
from heddle.cli.argv import Parameter, Verb, parse, words_of
from heddle.cli.program import main
from heddle.lab.imported.choose import files_of
from heddle.places.choice import place_for
from heddle.runs.store import KEEP_BYTES, KEEP_RUNS
from heddle_plugins.places import server
from heddle_plugins.places.address import Address, parse_address
from heddle_plugins.places.server import manifest_there, remove, unpack
from heddle_plugins.places.session import PASSED, command
from heddle_plugins.places.ssh import Target, host_key_problem, known_keys, target_of
from heddle_plugins.places.sync import checkout_id, manifest_of, pack
from tests.answers import Answers


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEDDLE_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


def test_places_are_read_and_written_alike(answers: Answers) -> None:
    def read(text: str) -> Address:
        address = parse_address(text)
        assert str(address) == text
        return address

    answers(read)


def test_a_place_that_is_none_is_hinted(answers: Answers) -> None:
    answers(place_for)


def test_the_place_of_an_experiment_can_be_a_cluster_which_is_reached_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tasks

    (tmp_path / "config.yml").write_text("place: there\n")
    monkeypatch.setenv("HEDDLE_CONFIG", str(tmp_path / "config.yml"))
    for on, said in ((["--on", "kubernetes"], ""), (["--on", "here"], ""), (["--on", "there"], "--on there is not a"),
                     ([], "place: there is not a place")):  # fmt: skip
        assert main(vars(tasks), ["inv", "experiment", "queue-pairs", "--list", *on]) == (2 if said else 0)
        assert said in capsys.readouterr().err
    assert main(vars(tasks), ["inv", "status", "--on", "kubernetes"]) == 2
    assert "use --runtime kubernetes" in capsys.readouterr().err


def test_a_password_is_refused_and_not_shown_again() -> None:
    with pytest.raises(InputError, match="contains a password") as error:
        parse_address("ssh:me:secret@lab")
    assert "secret" not in str(error.value)


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings" / "heddle" / "config.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_place_is_typed_or_named_by_the_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_for(None) is None
    for text in ("", "# place: ssh:lab\n", "place: here\n"):
        config(tmp_path, text)
        assert place_for(None) is None
    config(tmp_path, "place: ssh:me@lab:2222\n")
    assert repr(place_for(None)) == repr(place_for("ssh:me@lab:2222"))
    assert place_for("here") is None
    monkeypatch.setenv("HEDDLE_CONFIG", "")
    assert place_for(None) is None
    monkeypatch.setenv("HEDDLE_CONFIG", str(tmp_path / "nowhere.yml"))
    with pytest.raises(InputError, match=r"nowhere.yml does not exist"):
        place_for(None)


def test_wrong_settings_are_reported_with_their_line(tmp_path: Path, answers: Answers) -> None:
    def read(text: str) -> object:
        config(tmp_path, text)
        return place_for(None)

    answers(read)


EMPTY: Any = inspect.Parameter.empty


def test_a_verb_is_sent_in_words_that_mean_the_same() -> None:
    parameters = [
        Parameter("fabric", "str", EMPTY, positional=True),
        Parameter("qp_mode", "str", "split", positional=False),
        Parameter("set_", "list", (), positional=False),
        Parameter("warm", "bool", default=True, positional=False),
        Parameter("all_", "bool", default=False, positional=False),
        Parameter("timeout", "float", None, positional=False),
        Parameter("on", "str", None, positional=False),
        Parameter("args", "list", (), positional=False),
    ]
    verb = Verb("up", parameters, rest="args")
    for typed in (
        ["my file.yml"],
        ["--set", "a=b c", "--set=d='e'", "x", "--no-warm", "--all", "--timeout", "2.5"],
        ["x", "--qp-mode=round-robin", "--", "-k", "--", "y z"],
    ):
        values = parse(verb, typed)
        assert parse(verb, words_of(verb, {**values, "on": "here"})[1:]) == {**values, "on": "here"}


def test_a_command_in_a_node_is_sent_unchanged() -> None:
    lab = Parameter("lab", "str", None, positional=False)
    node, cmd = Parameter("node", "str", EMPTY, positional=True), Parameter("cmd", "list", (), positional=False)
    verb = Verb("exec", [node, cmd, lab], rest="cmd", rest_after_positionals=True)
    for typed in (["--lab=x", "host1", "ls", "-l", "--lab"], ["host1", "--", "sh", "-c", "a 'b'"], ["host1"]):
        values = parse(verb, typed)
        assert parse(verb, words_of(verb, values)[1:]) == values


def test_nothing_of_a_call_is_in_the_command_that_the_servers_shell_reads() -> None:
    words = shlex.split(command())
    assert words[:3] == ["exec", "python3", "-c"]
    assert len(words) == 4 and not set("\n!") & set(command())
    compile(words[3], "program", "exec")


def test_names_are_opened_where_they_were_brought_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEDDLE_FILES", raising=False)
    monkeypatch.chdir(tmp_path)
    assert (real("a.yml"), result_name("a.yml")) == (Path("a.yml"), str(tmp_path / "a.yml"))
    monkeypatch.setenv("HEDDLE_FILES", '{"../a.yml": "/srv/in/a.yml"}')
    assert (real("../a.yml"), result_name("../a.yml")) == (Path("/srv/in/a.yml"), "../a.yml")
    assert real("b.yml") == Path("b.yml")


def test_lines_to_be_typed_say_where_when_the_user_sits_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEDDLE_PLACE", raising=False)
    assert place_flag() == ""
    monkeypatch.setenv("HEDDLE_PLACE", "ssh:me@[2001:db8::7]:22")
    assert place_flag() == " --on 'ssh:me@[2001:db8::7]:22'"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "a project"
    files = {"inv": "#!/bin/sh\n", "tasks.py": "pass\n", "docs/a b.md": "text\n", "out/old.yml": "", "x.pyc": "",
             ".venv/bin/python": "", "docs/__pycache__/x.py": ""}  # fmt: skip
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "inv").chmod(0o755)
    (root / "link").symlink_to("docs/a b.md")
    return root


WANTED = ["docs/a b.md", "inv", "link", "tasks.py"]


def test_without_git_all_files_go_but_those_that_tools_keep(project: Path) -> None:
    manifest = manifest_of(project)
    assert sorted(manifest) == WANTED
    assert {manifest[n][0] for n in ("inv", "tasks.py", "link")} == {"x", "f", "l"}
    assert checkout_id(project) == checkout_id(project) != checkout_id(project / "docs")


@pytest.mark.needs("git")
def test_with_git_go_files_that_it_knows_or_does_not_ignore(project: Path) -> None:
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / ".gitignore").write_text("/out\n*.tmp\n")
    (project / "known.tmp").touch()
    subprocess.run(["git", "-C", str(project), "add", "-f", "known.tmp", "tasks.py"], check=True)
    (project / "ignored.tmp").touch()
    (project / "gone").touch()
    subprocess.run(["git", "-C", str(project), "add", "gone"], check=True)
    (project / "gone").unlink()
    assert sorted(manifest_of(project)) == sorted([*WANTED, ".gitignore", "known.tmp"])


def bring(project: Path, base: Path) -> list[str]:
    """What a sync does, without a connection: the names that were sent."""
    (base / "project").mkdir(parents=True, exist_ok=True)
    manifest, have = manifest_of(project), manifest_there(base)
    changed = [name for name, entry in manifest.items() if have.get(name) != entry]
    bundle = io.BytesIO()
    with tarfile.open(fileobj=bundle, mode="w:gz") as tar:
        pack(project, changed, tar)
    remove(base / "project", [name for name in have if name not in manifest] + changed)
    unpack(bundle.getvalue(), base)
    assert manifest_there(base) == manifest
    return sorted(changed)


def test_unchanged_files_are_not_read_again(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bring(project, tmp_path / "there")
    known = manifest_there(tmp_path / "there")
    monkeypatch.setattr(server, "manifest_entry", lambda path: ["x", path.name])
    assert manifest_there(tmp_path / "there") == known
    (tmp_path / "there/project/tasks.py").write_text("two\n")
    assert manifest_there(tmp_path / "there") == known | {"tasks.py": ["x", "tasks.py"]}


def test_a_sync_sends_what_differs_and_removes_what_is_gone(project: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert bring(project, there) == WANTED
    (there / "project/.venv").mkdir()
    assert bring(project, there) == []
    (project / "tasks.py").write_text("two\n")
    (project / "inv").chmod(0o644)
    (project / "docs/a b.md").unlink()
    (there / "project/link").unlink()  # by hand
    assert bring(project, there) == ["inv", "link", "tasks.py"]
    assert not (there / "project/docs").exists()
    assert (there / "project/.venv").is_dir()
    assert not os.access(there / "project/inv", os.X_OK)
    (there / "project/tasks.py").write_text("bad\n")
    assert bring(project, there) == ["tasks.py"]


def test_files_and_directories_may_change_places(project: Path, tmp_path: Path) -> None:
    bring(project, tmp_path / "there")
    shutil.rmtree(project / "docs")
    (project / "docs").write_text("a file now\n")
    (project / "tasks.py").unlink()
    (project / "tasks.py").mkdir()
    (project / "tasks.py/x").write_text("a directory now\n")
    (project / "link").unlink()
    (project / "link").write_text("no link now\n")
    assert bring(project, tmp_path / "there") == ["docs", "link", "tasks.py/x"]


def key(kind: str = "ecdsa") -> paramiko.PKey:
    return paramiko.ECDSAKey.generate() if kind == "ecdsa" else paramiko.RSAKey.generate(1024)


ONE, TWO, RSA = key(), key(), key("rsa")


def line(names: str, key: paramiko.PKey = ONE, marker: str = "") -> str:
    return f"{marker} {names} {key.get_name()} {key.get_base64()} a comment\n".lstrip()


KNOWN, UNKNOWN, CHANGED, REVOKED = "", "is not a known host", "DIFFERS FROM THE KNOWN ONE", "A REVOKED HOST KEY"


@pytest.mark.parametrize(
    ("text", "host", "port", "state"),
    [
        (line("lab"), "LAB", 22, KNOWN),
        (line("other,lab"), "lab", 22, KNOWN),
        (line("[lab]:2222"), "lab", 2222, KNOWN),
        (line("[lab]:2222"), "lab", 22, UNKNOWN),
        (line("lab"), "lab", 2222, UNKNOWN),
        (line("[::1]:2222"), "::1", 2222, KNOWN),
        (line("l*,!lab"), "lab", 22, UNKNOWN),
        (line(HostKeys.hash_host("lab")), "lab", 22, KNOWN),
        (line(HostKeys.hash_host("[lab]:2222")), "lab", 2222, KNOWN),
        (line(HostKeys.hash_host("lab")), "other", 22, UNKNOWN),
        (line("|1|not|base64!"), "lab", 22, UNKNOWN),
        (line("lab", TWO), "lab", 22, CHANGED),
        (line("lab", RSA) + line("lab", TWO) + line("lab"), "lab", 22, KNOWN),
        (line("lab") + line("other", marker="@revoked"), "lab", 22, REVOKED),
        (line("lab") + line("*", TWO, marker="@revoked"), "lab", 22, KNOWN),
        (line("lab", marker="@cert-authority"), "lab", 22, UNKNOWN),
        ("lab\nlab ssh-rsa\nlab ssh-rsa not*base64\nlab ssh-rsa AAAA\nlab new-type AAAA\n", "lab", 22, UNKNOWN),
    ],
)
def test_host_keys_are_judged_as_in_openssh(text: str, host: str, port: int, state: str, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text("# a comment\n\n" + text)
    target = Target(host, host, port, "me", (), True, (tmp_path / "known_hosts", tmp_path / "none"))
    problem = host_key_problem(Address(host), target, ONE, known_keys(target))
    assert state in (problem.why if problem else "") and bool(problem) is bool(state)
    if problem and state in (CHANGED, REVOKED):
        assert problem.where.startswith(f"{tmp_path}/known_hosts:")


@pytest.fixture
def ssh_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh/more").mkdir(parents=True)
    (tmp_path / ".ssh/more/labs").write_text("Host lab\n  HostName 192.0.2.1\n  ProxyJump a@gate:2222,mid\n")
    (tmp_path / ".ssh/more/user").write_text("User included\n")
    return tmp_path / ".ssh/config"


def test_settings_of_openssh_and_included_files_are_read(ssh_config: Path) -> None:
    lines = ["Include more/labs", "Port 2022", "Host far", "  Include more/us*", "  ProxyCommand nc %h %p %r", "Host *",
             "  IdentityFile ~/key", "Include config"]  # fmt: skip
    ssh_config.write_text("\n".join(lines))
    lab = target_of(Address("lab", "me"))
    assert (lab.host, lab.port, lab.user, lab.jumps) == ("192.0.2.1", 2022, "me", ("a@gate:2222", "mid"))
    assert lab.keys == (ssh_config.parent.parent / "key",)
    far = target_of(Address("far", port=23))
    assert (far.user, far.jumps, far.proxy) == ("included", (), "nc far 23 included")
    ssh_config.write_text("Host lab\n  ProxyJump none\n  ProxyCommand none\n  Port x\n")
    assert target_of(Address("lab", port=1)).jumps == () and not target_of(Address("lab", port=1)).proxy
    with pytest.raises(InputError, match=r"cannot be read: .*'x'"):
        target_of(Address("lab"))


def test_a_topology_takes_files_below_its_directory_only(tmp_path: Path) -> None:
    mine = tmp_path / "lab"
    (mine / "conf").mkdir(parents=True)
    for name in ("lab/conf/a", "secret"):
        (tmp_path / name).write_text("x")

    def topology(*binds: str) -> str:
        nodes = {"r1": {"kind": "linux", "binds": list(binds)}}
        (mine / "x.clab.yml").write_text(json.dumps({"name": "x", "topology": {"nodes": nodes}}))
        return str(mine / "x.clab.yml")

    typed = topology("conf:/etc/frr", "/etc/passwd:/x", "none:/y")
    assert files_of(typed) == [typed, str(mine / "conf/a")]
    (mine / "conf/way").symlink_to(tmp_path / "secret")
    (mine / "all").symlink_to(tmp_path)
    for bind, refused in (("conf:/x", "lab/conf/way"), ("../secret:/x", "secret"), ("all:/x", "lab/all")):
        with pytest.raises(InputError, match="names files outside its directory") as error:
            files_of(topology(bind))
        assert str(tmp_path / refused) in str(error.value)
    os.mkfifo(mine / "fifo")
    assert files_of(str(mine / "fifo")) == [str(mine / "fifo")]
    assert files_of(topology("fifo:/x"))[1:] == []


def test_the_limits_of_kept_runs_go_along_to_other_machines() -> None:
    assert {KEEP_RUNS, KEEP_BYTES} <= set(PASSED)
