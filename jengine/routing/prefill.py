"""Request bodies for disaggregated prefill: for the prefill server and for the decode server.

In: a client's body. Out: both bodies.
"""

from __future__ import annotations

import json
from typing import Any

from jengine.wire.json_limits import complaint_about

# Requests whose prompts a prefill server can compute.
GENERATE = ("/v1/completions", "/v1/chat/completions")
# Fields dropped for prefill: its response is not streamed and has one token.
ONLY_WHOLE = ("stream_options", "min_tokens")


def fields_of(data: bytes) -> dict[str, Any] | None:
    """A body's fields; None if it is not a JSON object, which the decode server will refuse."""
    try:
        # Bodies too expensive to decode are left to the server to refuse.
        body = None if complaint_about(data) else json.loads(data)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def prompt_only(body: dict[str, Any]) -> bytes:
    """The body for the prefill server: the same prompt, one output token."""
    short = {name: value for name, value in body.items() if name not in ONLY_WHOLE}
    short |= {"stream": False, "max_tokens": 1, "n": 1}
    if "max_completion_tokens" in short:
        short["max_completion_tokens"] = 1
    short["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False}
    return json.dumps(short).encode()


def told_in(answer: bytes) -> dict[str, Any] | None:
    """The prefill server's `kv_transfer_params`, which locate its blocks."""
    said = json.loads(answer).get("kv_transfer_params")
    return said if isinstance(said, dict) else None


def gone_on(body: dict[str, Any], told: dict[str, Any]) -> bytes:
    """The body for the decode server, with the location of the blocks."""
    return json.dumps({**body, "kv_transfer_params": told}).encode()
