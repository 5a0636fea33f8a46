from __future__ import annotations

import pytest

from voice.gateway.security import is_loopback, refusal


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("localhost.example.com", False),
        ("", False),
    ],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("host", "origin", "on_loopback", "elsewhere"),
    [
        ("localhost:8080", None, True, True),
        ("127.0.0.1:8080", None, True, True),
        ("[::1]:8080", None, True, True),
        ("localhost", "http://localhost", True, True),
        ("localhost:8080", "http://localhost:8080", True, True),
        ("LOCALHOST:8080", "http://localhost:8080", True, True),
        ("localhost:8080", "https://localhost:8080", True, True),
        ("ember.lan:8080", "http://ember.lan:8080", False, True),  # or DNS rebinding
        ("localhost:8080", "http://localhost:3000", False, False),
        ("localhost:8080", "http://evil.example", False, False),
        ("localhost:8080", "http://localhost:8080.evil.example", False, False),
        ("localhost:8080", "file://localhost:8080", False, False),
        ("localhost:8080", "null", False, False),
        ("localhost:8080", "", False, False),
        ("localhost:8080", "http://[", False, False),
        ("[", None, False, True),
        ("", None, False, True),
        (None, None, False, False),
    ],
)
def test_refusal(host: str | None, origin: str | None, on_loopback: bool, elsewhere: bool) -> None:
    assert (refusal(host, origin, only_loopback=True) is None) is on_loopback
    assert (refusal(host, origin, only_loopback=False) is None) is elsewhere
