"""known_hosts as OpenSSH reads it: who is known, who is not, and who has changed."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from heddle.places.known_hosts import HostKeyState, algorithms, fingerprint, judge, known_name, parse_entries

ONE, TWO = b"key one", b"key two"


def line(names: str, key: bytes = ONE, kind: str = "ssh-ed25519", marker: str = "") -> str:
    return f"{marker} {names} {kind} {base64.b64encode(key).decode()} a comment".strip()


def hashed(name: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def verdict(text: str, host: str = "lab", port: int = 22, key: bytes = ONE) -> HostKeyState:
    return judge(parse_entries(text, "known_hosts"), host, port, key).verdict


@pytest.mark.parametrize(
    ("names", "host", "port", "known"),
    [
        ("lab", "lab", 22, True),
        ("lab", "LAB", 22, True),
        ("lab,192.0.2.1", "192.0.2.1", 22, True),
        ("lab", "lab2", 22, False),
        ("[lab]:2222", "lab", 2222, True),
        ("[lab]:2222", "lab", 22, False),
        ("[lab]:2222", "lab", 2223, False),
        ("lab", "lab", 2222, True),  # a key that the host is known by is good at any port
        ("[::1]:2222", "::1", 2222, True),
        ("*.example.org", "lab.example.org", 22, True),
        ("*.example.org,!lab.example.org", "lab.example.org", 22, False),
        ("la?", "lab", 22, True),
        ("l.b", "lab", 22, False),
        (hashed("lab"), "lab", 22, True),
        (hashed("[lab]:2222"), "lab", 2222, True),
        (hashed("lab"), "other", 22, False),
        ("|1|not|base64!", "lab", 22, False),
    ],
)
def test_names_match_as_in_openssh(names: str, host: str, port: int, known: bool) -> None:
    assert verdict(line(names), host, port) is (HostKeyState.KNOWN if known else HostKeyState.UNKNOWN)


def test_another_key_is_a_changed_one_and_its_line_is_named() -> None:
    text = "# a comment\n\n" + line("lab", TWO)
    judged = judge(parse_entries(text, "known_hosts"), "lab", 22, ONE)
    assert (judged.verdict, judged.where) == (HostKeyState.CHANGED, "known_hosts:3")
    assert verdict(line("[lab]:2222", TWO) + "\n" + line("lab", ONE), port=2222) is HostKeyState.CHANGED
    # What is known of port 22 says nothing against another server at another port.
    assert verdict(line("lab", TWO), port=2222) is HostKeyState.UNKNOWN


def test_one_of_many_keys_is_enough() -> None:
    assert verdict(line("lab", TWO, "ssh-rsa") + "\n" + line("lab", ONE)) is HostKeyState.KNOWN


def test_a_revoked_key_is_refused_although_it_is_known() -> None:
    assert verdict(line("lab") + "\n" + line("*", marker="@revoked")) is HostKeyState.REVOKED
    assert verdict(line("lab") + "\n" + line("*", TWO, marker="@revoked")) is HostKeyState.KNOWN


def test_unknown_entries_in_known_hosts_are_skipped() -> None:
    text = "\n".join(["lab", "lab ssh-rsa", "lab ssh-rsa not*base64", line("lab", marker="@cert-authority")])
    assert verdict(text) is HostKeyState.UNKNOWN


def test_the_server_is_asked_first_for_the_key_that_is_known() -> None:
    offered = ["ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256"]

    def asked(text: str, port: int = 22) -> list[str]:
        return algorithms(parse_entries(text, "x"), "lab", port, offered)

    assert asked("") == offered
    assert asked(line("lab", kind="ssh-rsa"))[:2] == ["rsa-sha2-512", "rsa-sha2-256"]
    assert asked(line("lab", kind="ecdsa-sha2-nistp256"))[0] == "ecdsa-sha2-nistp256"
    both = line("lab", kind="ssh-rsa") + "\n" + line("[lab]:2222", kind="ecdsa-sha2-nistp256")
    assert asked(both, 2222)[0] == "ecdsa-sha2-nistp256"
    assert sorted(asked(both)) == sorted(offered)


def test_names_and_fingerprints_are_written_as_openssh_does() -> None:
    assert (known_name("Lab", 22), known_name("::1", 2222)) == ("lab", "[::1]:2222")
    assert fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"
