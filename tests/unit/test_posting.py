"""The cost of posting: its model gives the published steps, and a rank posts when its thread has time."""

from __future__ import annotations

import pytest

from heddle.endpoints.nic.qpend import NEVER
from heddle.endpoints.ranks import PostingPace
from heddle.traffic.options import POSTING_WORDS, Posting, parse_posting
from tests.answers import Answers

NICS, WRITE_BITS, LINE_GBPS = 32, 8 * 65536, 3200
# Gb/s of "Harnessing 3200 Gbps Network", steps 10 to 15.
PUBLISHED = dict(zip(POSTING_WORDS, (293.461, 355.301, 1237.738, 1522.567, 2589.488, 3108.283), strict=True))


def gbps(posting: Posting, nics: int = NICS) -> float:
    """Of all NICs, while all are busy; without the limit of their links."""
    post, turn = posting.costs_ns(nics)
    return nics * WRITE_BITS / (post + turn / posting.batch)


@pytest.mark.parametrize("words", POSTING_WORDS)
def test_the_model_gives_the_published_rates_in_their_order(words: str) -> None:
    posting = parse_posting(words)
    assert gbps(posting) == pytest.approx(PUBLISHED[words], rel=0.002)
    assert gbps(posting) < 0.98 * LINE_GBPS
    assert posting.text == words.replace("batch", "batch=16").replace("batch=16,lazy", "lazy,batch=16")
    assert parse_posting(posting.text) == posting


def test_one_nic_is_limited_by_its_link_and_four_of_one_thread_by_posting() -> None:
    assert gbps(parse_posting("1"), 1) > 100
    assert gbps(parse_posting("1"), 4) == pytest.approx(293.461, rel=0.002)
    # NICs that do not divide evenly: the busiest thread has five of 33.
    assert parse_posting("8,pinned").costs_ns(33)[0] == pytest.approx(5 / 4 * parse_posting("8,pinned").costs_ns(32)[0])


def test_texts_that_make_no_sense_are_refused(answers: Answers) -> None:
    answers(parse_posting)


def test_a_turn_costs_once_for_its_batch_and_again_after_a_rest() -> None:
    pace, posted = PostingPace(1.0, 10.0, 2), list[int]()
    for number in range(3):
        pace.post(lambda number=number: posted.append(number), 0.0)  # type: ignore[misc]
    times = []
    while pace.due < NEVER:
        times.append(pace.due)
        if call := pace.done(pace.due):
            call()
    assert (times, posted) == ([11.0, 12.0, 23.0], [0, 1, 2])
    pace.post(lambda: None, 100.0)
    assert pace.due == 111.0
