"""`./inv impact`: what a change of a fabric file does to a workload, and when it is beyond a limit."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError
from heddle.cli.program import main
from heddle.endpoints.workloadfile import load_workload
from heddle.spec.load import presets
from heddle_plugins.experiments import changes
from heddle_plugins.experiments.changes import LIMITED, ChangeLimit, Changes, compare_fabrics, fabric_files
from heddle_plugins.experiments.experimenttext import changes_text, junit_xml
from tests.answers import Answers

TRAFFIC = {"ring": load_workload("ring,qps=4").workload, "mesh": load_workload("all-to-all").workload}
BASE = "name: x\nshape: clos\nracks: 2\nhosts_per_rack: 4\nctsw: 4\n"


def compared(base: str, head: str, workload: str = "ring", **limits: str) -> Changes:
    read = {name: ChangeLimit.parse(name, limits[key]) for name in LIMITED if (key := name.replace("-", "_")) in limits}
    return compare_fabrics(base, head, {workload: TRAFFIC[workload]}, read, Silent())


@pytest.mark.parametrize("name", presets())
def test_an_unchanged_fabric_is_never_beyond_a_limit(name: str) -> None:
    changes = compared(name, name, moved="0%", worst_link="+0%", mmr="1.0", completion="0.5")
    (pair,) = changes.results
    assert changes.ok and (pair.paths is None or (pair.paths.moved == 0 and pair.paths.common > 0))


def test_one_uplink_less_moves_paths_and_is_beyond_its_limits(tmp_path: Path) -> None:
    one, other = tmp_path / "one.yml", tmp_path / "other.yml"
    one.write_text(BASE)
    other.write_text(BASE.replace("ctsw: 4", "ctsw: 1"))
    changes = compared(str(one), str(other), "mesh", moved="10%", worst_link="+5%", mmr="+5%")
    (pair,) = changes.results
    assert pair.paths is not None and 0 < pair.paths.moved < pair.paths.common == 56
    base, head = pair.figure("worst-link")
    assert head is not None and base is not None and head >= 2 * base
    assert [line.partition(" is ")[0] for line in pair.beyond] == [
        "time of the worst link",
        "share of paths that moved",
    ]
    assert "BEYOND A LIMIT" in changes_text(changes)
    suite = ElementTree.fromstring(junit_xml(changes))
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1") and suite.find("testcase/failure") is not None
    back = compared(str(other), str(one), "mesh", worst_link="+5%", mmr="1.0")
    assert back.results[0].figure("mmr")[1] and "time of the worst link" not in " ".join(back.results[0].beyond)


def test_fewer_links_with_a_smaller_mmr_are_not_better(tmp_path: Path) -> None:
    """The mean over fewer links is larger. The time of the worst link decides, and that is said."""
    one, other = tmp_path / "one.yml", tmp_path / "other.yml"
    one.write_text(BASE)
    other.write_text(BASE.replace("ctsw: 4", "ctsw: 1"))
    changes = compared(str(one), str(other), "mesh", mmr="+5%")
    (pair,) = changes.results
    before, after = pair.figure("mmr")
    assert before is not None and after is not None and after < before, "the MMR alone would call it better"
    assert not changes.ok and pair.links == (8, 2)
    assert (
        "time of the worst link is" in pair.beyond[0] and "for the MMR of fewer links (2, before 8)" in pair.beyond[0]
    )
    assert "8 links upwards, then 2: the MMR is relative to their mean" in changes_text(changes)
    assert compared(str(other), str(one), "mesh", worst_link="+0%").ok


def test_hosts_that_are_added_are_no_moved_paths(tmp_path: Path) -> None:
    one, other = tmp_path / "one.yml", tmp_path / "other.yml"
    one.write_text(BASE)
    other.write_text(BASE.replace("racks: 2", "racks: 3"))
    (pair,) = compared(str(one), str(other)).results
    assert pair.paths is not None and pair.paths.added > 0 and pair.paths.removed > 0  # the ring closes elsewhere
    assert pair.paths.common + pair.paths.removed == 32


def test_packets_that_spread_have_no_moved_paths(tmp_path: Path) -> None:
    file = tmp_path / "x.yml"
    file.write_text(f"{BASE}routing: {{ecmp: spray}}\n")
    (pair,) = compared(str(file), str(file), moved="0%").results
    assert pair.paths is None and not pair.beyond


def test_a_wrong_limit_is_named(answers: Answers) -> None:
    answers(ChangeLimit.parse)


def test_a_fabric_that_is_gone_fails_also_where_each_folder_has_one(tmp_path: Path) -> None:
    for folder, name in (("old", "tiny"), ("new", "zone")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.yml").write_text(BASE)
    old, new = tmp_path / "old", tmp_path / "new"
    changes = compared(str(old), str(new))
    assert (changes.results, changes.added, changes.removed, changes.ok) == ((), ("zone.yml",), ("tiny.yml",), False)
    assert "tiny.yml: a fabric file that is gone is an error" in changes_text(changes)
    assert compared(str(old / "tiny.yml"), str(new / "zone.yml")).ok, "two files are a pair, whatever their names"
    assert compared(str(old), str(new / "zone.yml")).ok


def git(where: Path, *words: str) -> None:
    user = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *user, *words], cwd=where, check=True, capture_output=True)


def test_files_of_a_revision_and_of_folders_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "fabrics"
    folder.mkdir()
    (folder / "a.yml").write_text(BASE)
    (folder / "b.yml").write_text(BASE.replace("name: x", "name: y"))
    (folder / "notes.yml").write_text("text: not a fabric\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    (folder / "b.yml").unlink()
    (folder / "c.yml").write_text(BASE)
    monkeypatch.chdir(tmp_path)
    changes = compared("HEAD:fabrics", "fabrics")
    assert ([each.name for each in changes.results], changes.added, changes.removed) == (
        ["a.yml"],
        ("c.yml",),
        ("b.yml",),
    )
    assert "only before the change: b.yml: a fabric file that is gone is an error" in changes_text(changes)
    assert not changes.ok and not any(each.beyond for each in changes.results)
    suite = ElementTree.fromstring(junit_xml(changes))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1") and "gone" in junit_xml(changes)
    (folder / "b.yml").write_text(BASE)
    assert compared("HEAD:fabrics", "fabrics").ok
    (folder / "b.yml").unlink()
    (folder / "c.yml").write_text(BASE.replace("racks", "rack"))  # a new file has no pair, but its errors count
    with pytest.raises(InputError, match=r"fabrics/c.yml:3  rack"):
        compared("HEAD:fabrics", "fabrics")
    (folder / "c.yml").write_text(BASE)
    with fabric_files("HEAD:fabrics/b.yml") as (found, _):
        assert [*found] == ["b.yml"]
    monkeypatch.chdir(folder)  # as git reads them: from the root, or from here
    for typed in ("HEAD:fabrics/b.yml", "HEAD:./b.yml", "HEAD:../fabrics/b.yml"):
        with fabric_files(typed) as (found, _):
            assert [*found] == ["b.yml"]
    with pytest.raises(InputError, match="is not in that revision"), fabric_files("HEAD:../../b.yml"):
        pass
    monkeypatch.chdir(tmp_path)
    (folder / "a.yml").write_text(BASE.replace("racks", "rack"))
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "broken")
    for typed, said in (
        ("HEAD:fabrics/a.yml", "HEAD:fabrics/a.yml:3  rack"),
        ("HEAD:nothing.yml", "HEAD:nothing.yml is not in that revision"),
        ("no:fabrics", "no:fabrics is neither a file nor of a revision"),
        ("--all:fabrics", "is neither a file nor of a revision"),
    ):
        with pytest.raises(InputError) as caught:
            compared(typed, "zone")
        assert said in str(caught.value)


def test_files_of_a_revision_are_read_by_a_python_without_filters_of_tarfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python before 3.11.4: what a filter refuses is refused there, and so is each link."""
    (tmp_path / "fabrics").mkdir()
    (tmp_path / "fabrics/a.yml").write_text(BASE)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/a.yml").symlink_to("/etc/passwd")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.chdir(tmp_path)
    for filters in (True, False):
        if not filters:
            monkeypatch.delattr(tarfile, "data_filter", raising=False)
            monkeypatch.delattr(tarfile.TarFile, "extractall")
        assert compared("HEAD:fabrics", "fabrics").ok
        with pytest.raises(MachineError, match="cannot be read"), fabric_files("HEAD:linked"):
            pass


@pytest.mark.parametrize(
    ("name", "kind"), [("../a", b"0"), ("/a", b"0"), ("b/../../a", b"0"), ("a", b"2"), ("a", b"3")]
)
def test_a_member_that_leaves_its_folder_is_refused_without_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: bytes
) -> None:
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    member, packed = tarfile.TarInfo(name), BytesIO()
    member.type, member.linkname = kind, "/etc/passwd"
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(member)
    packed.seek(0)
    folder = tmp_path / "c/d"
    with (
        tarfile.open(fileobj=packed) as archive,
        pytest.raises(tarfile.TarError, match="is a link, a device or outside"),
    ):
        changes._unpack(archive, folder)
    assert [*tmp_path.rglob("*")] == []


def test_the_verb_writes_junit_and_needs_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tasks

    file = tmp_path / "check.xml"
    assert main(vars(tasks), ["inv", "impact", "--base", "tiny", "--head", "tiny", "--junit", str(file)]) == 0
    assert file.read_text().count("<testcase") == 1 and "0 of 16 (0.0%)" in capsys.readouterr().out
    assert main(vars(tasks), ["inv", "impact", "--head", "tiny"]) == 2
    assert "--base is missing" in capsys.readouterr().err
