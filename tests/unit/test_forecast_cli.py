"""`./inv predict` as it is typed: its flags, documents and files; it asks for neither root nor a lab."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.cli.predict_verb import files_in
from heddle.cli.program import main
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.forecast import Ask, forecast
from heddle.offline.wires import compared
from heddle.views.forecasttext import render
from heddle.views.heatmap import draw
from heddle.views.style import picture_kind
from tests.answers import Answers
from tests.marks import deep

Inv = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def inv(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Inv:
    """Exit code and JSON document of a verb, run in an empty directory by a user who must not become root."""
    import tasks

    def refuse(verb: str) -> None:
        raise AssertionError(f"{verb} asks for root")

    monkeypatch.setattr("heddle.cli.verbs.become_root", refuse)
    monkeypatch.chdir(tmp_path)

    def typed(*words: str) -> tuple[int, dict[str, Any]]:
        code = main(vars(tasks), ["inv", *words, "--format", "json"])
        return code, json.loads(capsys.readouterr().out)

    return typed


def test_a_prediction_needs_no_root_and_writes_what_was_asked_for(inv: Inv, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("src,dst,bytes\n0,4,100K\nhost2,host7,1M\n")
    (tmp_path / "p.yml").write_text("matrix: m.csv\nqps: 8\n")
    words = ["--workload", "p.yml", "--mode", "e-ecmp", "--trials", "3", "--drain", "ctsw4"]
    words += ["--down", "rtsw1:eth1,ctsw3"]
    code, said = inv("predict", "dc", *words, "--csv", "l.csv", "--heatmap", "l.svg")
    assert code == 0
    assert said["fabric"] == "dc"
    assert said["emulated"] == {"k": load_fabric("dc").spec.k}
    assert [mode["mode"] for mode in said["modes"]] == compared("e-ecmp")
    assert said["down"] == ["rtsw1:eth1", "ctsw3"]
    assert said["trials"] == 3
    assert set(said["modes"][0]["trials"]["over_roofline"]) == {"mean", "p5", "p95"}
    assert said["workload"]["flows"] == 32, "8 QPs of 2 pairs, and of the credits of their receivers"
    assert said["completion"]["over_roofline"] >= 1
    assert said["unreachable"]["flows"] == 0
    assert {"threshold", "resilient"} <= set(said["moved"])
    assert said["checked"]["state"] in ("agrees", "unchecked")  # unchecked until Heddle has run as root
    rows = list(csv.DictReader((tmp_path / "l.csv").read_text().splitlines()))
    assert {row["port"]: int(row["e-ecmp_bytes"]) for row in rows} == {r["port"]: r["bytes"] for r in said["links"]}
    assert not [row for row in rows if row["port"].startswith("ctsw3:") or row["port"] == "rtsw1:eth1"]
    assert (tmp_path / "l.svg").read_text().startswith("<?xml")


def test_flows_without_a_path_come_first_and_give_exit_code_1(inv: Inv, capsys: pytest.CaptureFixture[str]) -> None:
    import tasks

    words = ["predict", "tiny", "--workload", "ring", "--down", "host1"]
    code, said = inv(*words)
    assert (code, said["unreachable"]["flows"]) == (1, 2)
    assert main(vars(tasks), ["inv", *words]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("2 of 4 flows have no path; all figures leave them out: host1:eth1 to host2:eth1")
    assert main(vars(tasks), ["inv", *words[:-2]]) == 0
    assert "no path" not in capsys.readouterr().out


def test_a_job_has_its_class_and_admission_its_acks_in_words(inv: Inv, capsys: pytest.CaptureFixture[str]) -> None:
    import tasks

    words = ["inv", "predict", "tiny"]
    assert main(vars(tasks), [*words, "--workload", "ring,dscp=8,admission=on"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "class 0 (DSCP 8)" in said and "ACKs of CTS packets" in said
    assert main(vars(tasks), [*words, "--workload", "ring"]) == 0
    said = capsys.readouterr().out
    assert "(DSCP" not in said and "ACKs of CTS" not in said
    assert inv("predict", "tiny", "--workload", "ring,dscp=8")[1]["workload"]["jobs"][0]["class"] == 0


def test_qps_that_carry_nothing_are_named_above_the_table() -> None:
    result = forecast(load_fabric("tiny").fabric, load_workload("ring,qps=64,size=16K").workload, Ask(), Silent())
    text = render(result)
    said = "128 of 256 QPs carry nothing: messages are too short for so many parts of 128 bytes"
    assert text.index(said) < text.index("completion /roofline")
    assert text.count("carry nothing") == 1
    assert result.to_json()["notes"][0] == said


def test_files_of_a_prediction_come_along_to_another_machine(tmp_path: Path) -> None:
    plan = tmp_path / "p.yml"
    plan.write_text("matrix: m.csv\n")
    assert files_in({"fabric": "mine.yml", "workload": str(plan)}) == ["mine.yml", str(plan), str(tmp_path / "m.csv")]
    assert files_in({"fabric": "zone", "workload": "ring,qps=4"}) == ["zone"]
    assert files_in({"fabric": "zone", "workload": None}) == ["zone"]


@pytest.mark.parametrize("kind", ["svg", deep("png"), deep("pdf")])
def test_a_heat_map_is_the_same_bytes_each_time(kind: str) -> None:
    result = forecast(
        load_fabric("dc").fabric, load_workload("all-to-all,qps=2").workload, Ask(down=("ctsw1:eth1",)), Silent()
    )
    word = picture_kind("--heatmap", f"x.{kind}")
    first = draw(word, result)
    assert first == draw(word, result)
    assert first[:4] == {"svg": b"<?xm", "png": b"\x89PNG", "pdf": b"%PDF"}[kind]


def test_a_heat_map_is_a_picture_that_names_its_tiers_and_its_busiest_link() -> None:
    result = forecast(load_fabric("dc").fabric, load_workload("all-to-all,qps=2").workload, Ask(), Silent())
    text = draw("svg", result).decode()
    for word in ("RTSW to CTSW", "CTSW to ATSW", "rtsw4", "atsw2", result.wires.ports[result.modes[0].busiest]):
        assert word in text
    assert (
        "ATSW"
        not in draw(
            "svg", forecast(load_fabric("tiny").fabric, load_workload("ring").workload, Ask(), Silent())
        ).decode()
    )
    # A heat map is a picture.
    with pytest.raises(InputError, match=r"--heatmap load\.txt has no suffix of a picture"):
        picture_kind("--heatmap", "load.txt")


def test_a_heat_map_has_a_legend_for_what_is_down_and_drained() -> None:
    def heat_map(*down: str, drained: tuple[str, ...] = (), fabric: str = "zone") -> str:
        ask = Ask(down=down, drain=drained)
        return draw("svg", forecast(load_fabric(fabric).fabric, load_workload("ring").workload, ask, Silent())).decode()

    both = heat_map("rtsw1:eth1", "ctsw2", drained=("ctsw3",))
    assert ">down: rtsw1:eth1, ctsw2<" in both and ">drained by BGP: ctsw3<" in both
    assert "down" not in heat_map() and "drained" not in heat_map()
    assert ">down: host3 (no link between switches)<" in heat_map("host3")
    many = heat_map(*(f"rtsw{n}:eth1" for n in range(1, 9)))
    assert ">down: rtsw1:eth1, rtsw2:eth1, rtsw3:eth1, rtsw4:eth1, rtsw5:eth1, rtsw6:eth1 and 2 more<" in many


def test_what_cannot_be_predicted_or_written_is_refused_before_the_prediction(
    inv: Inv, monkeypatch: pytest.MonkeyPatch, answers: Answers
) -> None:
    from heddle.offline import forecast

    def asked(words: str) -> str:
        with monkeypatch.context() as patch:
            if "ranks=99" not in words:
                patch.setattr(forecast, "forecast", unexpected)
            code, found = inv("predict", "tiny", *words.split())
        (problem,) = found["error"]["problems"]
        assert Path("m.csv").read_text() == "src,dst,bytes\n0,1,64K\n"
        return f"exit code {code}: {problem['what']} {problem['why']}"

    def unexpected(*_: object) -> None:
        pytest.fail("the prediction ran")

    Path("d").mkdir()
    Path("m.csv").write_text("src,dst,bytes\n0,1,64K\n")
    Path("p.yml").write_text("matrix: m.csv\n")
    answers(asked)
