"""What `up --shards N --dry-run` prints, word for word, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable

from tests.answers import Answers
from tests.typed import typed

LARGE = ("zones=8", "racks=252", "ctsw=18", "atsw=18", "hosts_per_rack=1")


def test_the_cut_of_a_zone(golden: Callable[[str, str], None]) -> None:
    golden("shards/zone.log", printed("zone", "--shards", "3"))
    golden("shards/zone.json", printed("zone", "--shards", "3", "--format", "json"))


def test_the_cut_of_a_data_centre_with_its_limits(golden: Callable[[str, str], None]) -> None:
    golden("shards/dc.log", printed("dc", "--shards", "8", *(word for key in LARGE for word in ("--set", key))))


def test_the_errors_of_shards(answers: Answers) -> None:
    answers(lambda line: typed("up", "zone", *line.split()).stderr)


def printed(fabric: str, *words: str) -> str:
    done = typed("up", fabric, *words, "--dry-run")
    assert done.returncode == 0, done.stderr
    return done.stdout
