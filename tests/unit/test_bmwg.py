"""`reproduce bmwg`: every file of the folder loads and cites its section, and the report has the draft's ten parts."""

from __future__ import annotations

import re

import pytest

from heddle.experiments.figures import LinkShare, of_links
from heddle.experiments.folders import Folder, load_folder


@pytest.fixture(scope="module")
def bmwg() -> Folder:
    return load_folder("bmwg")


def test_every_experiment_cites_a_section_of_the_draft_and_sets_no_band(bmwg: Folder) -> None:
    for each in bmwg.experiments:
        assert each.spec.claim is not None and each.checks, each.name
        assert re.match(r"Section \d+\.\d, ", each.spec.claim.source), each.name
        assert all(check.spec.band == (None, None) for check in each.checks), each.name
    assert "The DUT is an emulation" in bmwg.spec.statement and "revision" in bmwg.spec.source


def test_jains_index_of_links_is_one_for_even_use_and_one_of_n_for_a_single_link() -> None:
    even = [LinkShare(f"rtsw1:eth{i}", "RTSW to CTSW", 40.0, used=True, uplink=True) for i in range(4)]
    single = [LinkShare(f"rtsw1:eth{i}", "RTSW to CTSW", 40.0 * (i == 0), used=i == 0, uplink=True) for i in range(4)]
    assert of_links("link_jfi", even, {}) == pytest.approx(1) and of_links("link_jfi", single, {}) == 0.25
