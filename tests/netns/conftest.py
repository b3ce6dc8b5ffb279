"""What several stories of places share: one OpenSSH server on loopback for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sshd import SshServer, copy_of_project, ssh_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """A server with a checkout: its paths have spaces, and no other test changes its files."""
    spot = tmp_path_factory.mktemp("place with spaces")
    with ssh_server(spot, project=copy_of_project(spot / "the project")) as running:
        assert running.inv("doctor", "--format=json").returncode in (0, 3)  # the project is there now
        yield running
