"""Where verbs run: what is typed or set, what a verb becomes when it is sent elsewhere, what of the project goes."""

from __future__ import annotations

import inspect
import io
import os
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from heddle.base.files import place_flag, real, result_name
from heddle.base.problems import InputError
from heddle.cli.argv import Parameter, Verb, parse, words_of
from heddle.places.address import Address, check_kind, parse_address
from heddle.places.channel import COMMAND, program
from heddle.places.choice import place_for
from heddle.places.config import config_path, read_config
from heddle.places.kinds import KINDS
from heddle.places.server import Chunks, Wire
from heddle.places.store import Manifest, Store, digest_of, pack, unpack
from heddle.places.sync import checkout_id, manifest_of, send


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEDDLE_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ssh:lab", Address("lab")),
        ("ssh:me@lab.example.org", Address("lab.example.org", "me")),
        ("ssh:me@lab:2222", Address("lab", "me", 2222)),
        ("ssh:a@b.org@lab", Address("lab", "a@b.org")),
        ("ssh:[::1]", Address("::1")),
        ("ssh:me@[fe80::1%eth0]:65535", Address("fe80::1%eth0", "me", 65535)),
    ],
)
def test_places_are_read_and_written_alike(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Here", "did you mean here?"),
        ("shh:me@lab", "did you mean ssh:me@lab?"),
        ("me@lab", "did you mean ssh:me@lab?"),
        ("lab.example.org", "did you mean ssh:lab.example.org?"),
        ("docker:x", "is not a place"),
        ("ssh:", "names no host"),
        ("ssh:@lab", "names no user"),
        ("ssh://me@lab/", "did you mean ssh:me@lab?"),
        ("ssh:::1", "ssh:[::1]"),
        ("ssh:[::1", "bracket that is not closed"),
        ("ssh:[::1]22", "has text after its bracket"),
        ("ssh:[lab]:22", "invalid IPv6 address in its brackets"),
        ("ssh:lab:0", "use a number from 1 to 65535"),
        ("ssh:lab:ssh", "has an invalid port: 'ssh'"),
        ("ssh:lab:65536", "has an invalid port"),
        ("ssh:-oProxyCommand=x", "has an invalid host name"),
        ("ssh:me@-lab", "has an invalid host name"),
        ("ssh:lab;reboot", "has an invalid host name"),
        ("ssh:-l@lab", "has an invalid user name"),
    ],
)
def test_a_place_that_is_none_is_hinted(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        check_kind(text, "", KINDS)
        parse_address(text)
    assert said in str(error.value)
    assert str(error.value).startswith(f"--place {text}")


def test_a_password_is_refused_and_not_shown_again() -> None:
    with pytest.raises(InputError, match="contains a password") as error:
        parse_address("ssh:me:secret@lab")
    assert "secret" not in str(error.value)


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings" / "heddle" / "config.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_settings_verbs_run_here(tmp_path: Path) -> None:
    assert config_path() is None
    assert place_for(None) is None
    for text in ("", "# place: ssh:lab\n", "place: here\n"):
        config(tmp_path, text)
        assert place_for(None) is None


def test_settings_name_a_place_and_what_is_typed_overrides_it(tmp_path: Path) -> None:
    path = config(tmp_path, "place: ssh:me@lab:2222\n")
    assert read_config(path).place == "ssh:me@lab:2222"
    assert repr(place_for(None)) == repr(place_for("ssh:me@lab:2222"))
    assert place_for("here") is None


def test_an_empty_variable_says_that_no_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(tmp_path, "place: ssh:lab\n")
    monkeypatch.setenv("HEDDLE_CONFIG", "")
    assert place_for(None) is None
    monkeypatch.setenv("HEDDLE_CONFIG", str(tmp_path / "nowhere.yml"))
    with pytest.raises(InputError, match=r"is not an existing file\n.*unset HEDDLE_CONFIG"):
        place_for(None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plcae: here\n", "config.yml:1  plcae is not a key of the config file ... did you mean place?"),
        ("# x\nplace: me@lab\n", "config.yml:2  place: me@lab does not name the kind of place"),
        ("place: 7\n", "config.yml:1  place: 7 is not a text ... ssh:user@host"),
        ("place:\n", "config.yml:1  place has no value"),
        ("place: [a]\n", "config.yml:1  place is a list"),
        ("place: here\nplace: here\n", "config.yml:2  place is given twice"),
        ("place: [\n", "is not YAML"),
        ("place: ssh:lab:x\nspeed: 9\n", "has an invalid port ... config.yml:2  speed is not a key"),
    ],
)
def test_wrong_settings_are_reported_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    config(tmp_path, text)
    with pytest.raises(InputError) as error:
        place_for(None)
    for words in said.split(" ... "):
        assert words in str(error.value)


EMPTY: Any = inspect.Parameter.empty


def test_a_verb_is_sent_in_words_that_mean_the_same() -> None:
    parameters = [
        Parameter("fabric", "str", EMPTY, positional=True),
        Parameter("qp_mode", "str", "split", positional=False),
        Parameter("set_", "list", (), positional=False),
        Parameter("warm", "bool", default=True, positional=False),
        Parameter("all_", "bool", default=False, positional=False),
        Parameter("timeout", "float", None, positional=False),
        Parameter("place", "str", None, positional=False),
        Parameter("args", "list", (), positional=False),
    ]
    verb = Verb("up", parameters, rest="args")
    for typed in (
        ["my file.yml"],
        ["--set", "a=b c", "--set=d='e'", "x", "--no-warm", "--all", "--timeout", "2.5"],
        ["x", "--qp-mode=round-robin", "--", "-k", "--", "y z"],
    ):
        values = parse(verb, typed)
        assert parse(verb, words_of(verb, {**values, "place": "here"})[1:]) == {**values, "place": "here"}


def test_a_command_in_a_node_is_sent_unchanged() -> None:
    lab = Parameter("lab", "str", None, positional=False)
    node, cmd = Parameter("node", "str", EMPTY, positional=True), Parameter("cmd", "list", (), positional=False)
    verb = Verb("exec", [node, cmd, lab], rest="cmd", rest_after_positionals=True)
    for typed in (["--lab=x", "host1", "ls", "-l", "--lab"], ["host1", "--", "sh", "-c", "a 'b'"], ["host1"]):
        values = parse(verb, typed)
        assert parse(verb, words_of(verb, values)[1:]) == values


def test_nothing_of_a_call_is_in_the_command_that_the_servers_shell_reads() -> None:
    assert shlex.split(COMMAND)[:3] == ["exec", "python3", "-c"]
    size, _, text = program().partition(b"\n")
    assert int(size) == len(text)
    compile(text, "program", "exec")


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
    assert place_flag() == " --place 'ssh:me@[2001:db8::7]:22'"


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


def test_two_checkouts_do_not_share_a_place(tmp_path: Path) -> None:
    assert checkout_id(tmp_path / "a") != checkout_id(tmp_path / "b")
    assert checkout_id(tmp_path) == checkout_id(tmp_path)


def bring(project: Path, store: Store) -> list[str]:
    """What a sync does, without a wire."""
    manifest = manifest_of(project)
    if store.is_at(digest_of(manifest)):
        return []
    needed = store.needs(manifest)
    tar = io.BytesIO()
    send(project, needed, tar)
    tar.seek(0)
    assert sorted(unpack(tar, store.project)) == needed
    assert store.finish(manifest)
    return needed


def test_a_sync_sends_what_differs_and_removes_what_is_gone(project: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "there")
    (store.project / ".venv").mkdir()
    assert bring(project, store) == WANTED
    assert bring(project, store) == []
    (project / "tasks.py").write_text("two\n")
    (project / "inv").chmod(0o644)
    (project / "docs/a b.md").unlink()
    assert bring(project, store) == ["inv", "tasks.py"]
    assert not (store.project / "docs").exists()
    assert (store.project / ".venv").is_dir()
    assert not os.access(store.project / "inv", os.X_OK)


def test_files_and_directories_may_change_places(project: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "there")
    bring(project, store)
    shutil.rmtree(project / "docs")
    (project / "docs").write_text("a file now\n")
    (project / "tasks.py").unlink()
    (project / "tasks.py").mkdir()
    (project / "tasks.py/x").write_text("a directory now\n")
    (project / "link").unlink()
    (project / "link").write_text("no link now\n")
    assert bring(project, store) == ["docs", "link", "tasks.py/x"]


def test_changed_and_incomplete_files_are_checked_again(project: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "there")
    bring(project, store)
    (store.project / "tasks.py").write_text("spoilt")
    assert bring(project, store) == ["tasks.py"]
    manifest: Manifest = manifest_of(project)
    (project / "tasks.py").write_text("three\n")
    assert store.needs(manifest_of(project)) == ["tasks.py"]  # and the connection is cut
    assert not store.is_at(digest_of(manifest))
    assert bring(project, store) == ["tasks.py"]


def test_no_file_leads_out_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "evil").write_text("x")
    for name in ("../evil", "a/../../evil"):
        tar = io.BytesIO()
        pack([(tmp_path / "evil", name)], tar)
        tar.seek(0)
        (tmp_path / "root").mkdir(exist_ok=True)
        with pytest.raises(ValueError, match="is outside"):
            unpack(tar, tmp_path / "root")
    # Nor through a link that came with it.
    (tmp_path / "way").symlink_to(tmp_path)
    tar = io.BytesIO()
    pack([(tmp_path / "way", "way"), (tmp_path / "evil", "way/new")], tar)
    tar.seek(0)
    unpack(tar, tmp_path / "root")
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "root/way/new").read_text() == "x"


def test_a_server_that_unpacks_slowly_reports_that_it_works() -> None:
    # The caller's frames K wait in the same stream behind the tar, so their answers alone come too late.
    class Stream(Wire):
        def __init__(self) -> None:
            super().__init__()
            self.sent = list[bytes]()

        def send(self, kind: bytes, data: bytes = b"") -> None:
            self.sent.append(kind)

    stream = Stream()
    for piece in (b"abcd", b"ef", b""):
        stream.steps.put((b"T", piece))
    chunks = Chunks(stream, b"T")
    assert [chunks.read(3), chunks.read(3), chunks.read(3), chunks.read(3)] == [b"abc", b"d", b"ef", b""]
    assert stream.sent == [b"k"] * 3


def test_a_later_member_of_a_tar_may_replace_a_directory_of_an_earlier_one(tmp_path: Path) -> None:
    outside, root, packed = tmp_path / "outside", tmp_path / "root", io.BytesIO()
    outside.mkdir()
    root.mkdir()
    link = tarfile.TarInfo("a/b")
    link.type, link.linkname = tarfile.SYMTYPE, str(outside)
    with tarfile.open(fileobj=packed, mode="w|gz") as tar:
        for member in ("a/b/1", "a/b/2", link, "a/b/3", "a", "a/b/4"):
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                entry = tarfile.TarInfo(member)
                entry.size = len(member)
                tar.addfile(entry, io.BytesIO(member.encode()))
    packed.seek(0)
    unpack(packed, root)
    assert list(outside.iterdir()) == [], "no file went through the link"
    assert {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()} == {
        "a/b/4": "a/b/4"
    }
