"""POST /invocations answers as the endpoint that the body is for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.serving import error_of, events, serving

HELLO = [{"role": "user", "content": "hello"}]


def texts(parts: list[dict[str, Any]]) -> tuple[str, str]:
    """The kind of object, and all text in it."""
    choices = [choice for part in parts for choice in part["choices"]]
    words = [one.get("text") or (one.get("delta") or one.get("message") or {}).get("content")
             for one in choices]  # fmt: skip
    return parts[0]["object"], "".join(filter(None, words))


@pytest.mark.parametrize(
    ("path", "body", "stream"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 3}, False),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3}, False),
        ("/v1/completions", {"prompt": "a", "max_tokens": 3}, True),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3}, True),
    ],
)
def test_it_answers_as_the_endpoint(path: str, body: dict[str, Any], stream: bool) -> None:
    with serving() as client:
        found = [
            client.post(one, json={**body, "stream": stream, "request_id": "x"})
            for one in (path, "/invocations")
        ]
        assert [one.status_code for one in found] == [200, 200]
        told = [texts(events(one) if stream else [one.json()]) for one in found]
        assert told[0] == told[1] and told[0][1]


@pytest.mark.parametrize("body", [b"{}", b"[1]", b"{", b"\xff", b"null"])
def test_other_bodies_are_refused(body: bytes) -> None:
    with serving() as client:
        answer = client.post(
            "/invocations", content=body, headers={"Content-Type": "application/json"}
        )
        error_of(answer, 400)
