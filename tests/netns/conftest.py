"""What several stories of places share: one OpenSSH server on loopback for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.sshd import SshServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """A server with a checkout: its paths have spaces, and no other test changes its files."""
    from tests.sshd import copy_of_project, ssh_server

    spot = tmp_path_factory.mktemp("place with spaces")
    with ssh_server(spot, project=copy_of_project(spot / "the project")) as running:
        assert running.inv("doctor", "--format=json").returncode in (0, 3)  # the project is there now
        yield running
