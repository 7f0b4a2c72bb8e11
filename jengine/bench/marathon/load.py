"""Load from many kinds of clients: patient, slow, disconnecting, sending invalid requests.

In: a port. Out: how often each kind of request ended in each way. An answer to a client that stays
is whole, or an HTTP error that says when to come again; everything else is counted as lost.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from jengine.bench.marathon.exchange import PATIENT, Manner, SeenReply, exchange

STORY = "Once upon a time there was a little fox who lived in a forest and liked to count. "
COMPLETIONS = "/v1/completions"
# Sampling with programs or arrays of its own: arguments of SamplingParams, and fields of bodies.
FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 1},
    "penalties": {"temperature": 0, "presence_penalty": 0.5, "repetition_penalty": 1.1},
    "logit_bias": {"temperature": 0, "logit_bias": {"5": 1.0}},
    "min_tokens": {"temperature": 0, "min_tokens": 2},
    "logprobs": {"temperature": 0, "logprobs": 5},
    "prompt_logprobs": {"temperature": 0, "prompt_logprobs": 1},
    "logprob_token_ids": {"temperature": 0, "logprobs": 2, "logprob_token_ids": [5, 6]},
    "structured_outputs": {"temperature": 0, "structured_outputs": {"choice": ["yes", "no"]}},
}


class ClientsLoad:
    """Concurrent clients, each with one request at a time (closed loop)."""

    def __init__(self, port: int, clients: int, is_disturbed: Callable[[], bool]) -> None:
        self.port = port
        self.clients = clients
        self._is_disturbed = is_disturbed  # whether a fault is being injected
        self.endings: Counter[str] = Counter()  # "kind: ending"
        self.lost: list[str] = []  # requests that ended in no proper way, in words
        self.lost_while_disturbed = 0
        self.sent = 0
        self._stopping = False

    async def run(self, requests: int | None) -> None:
        """Send until `stop` is called or the number of requests is reached."""
        numbers = iter(range(requests)) if requests else itertools.count()
        async with asyncio.TaskGroup() as group:
            for number in range(self.clients):
                group.create_task(self._client(random.Random(number), numbers))  # noqa: S311

    def stop(self) -> None:
        """Start no further requests."""
        self._stopping = True

    async def _client(self, rng: random.Random, numbers: Iterator[int]) -> None:
        for number in numbers:
            if self._stopping:
                return
            kind, path, body, manner = request_of(rng, number)
            disturbed = self._is_disturbed()
            self.sent += 1
            reply = await exchange(self.port, "POST", path, body, manner)
            ending = ending_of(kind, reply)
            self.endings[f"{kind}: {ending}"] += 1
            if ending == "lost" and (disturbed or self._is_disturbed()):
                self.lost_while_disturbed += 1
            elif ending == "lost":
                self.lost.append(f"request {number} ({kind}): {in_words(reply)}")
            if reply.status in (0, 503):
                await asyncio.sleep(rng.uniform(0.05, 0.3))  # as a client that tries again


def request_of(rng: random.Random, number: int) -> tuple[str, str, dict[str, Any], Manner]:
    """Kind of client, route, body and manner of a request."""
    kind = rng.choices(
        ("stream", "whole", "chat", "several", "leaving", "gone at once", "slow", "mistaken"),
        (30, 20, 10, 5, 18, 7, 5, 5),
    )[0]
    shared = STORY * rng.choice((0, 1, 1, 4))
    body: dict[str, Any] = {
        "prompt": f"{shared}Tale {number}:",
        "max_tokens": rng.choice((1, 4, 16, 48)),
        "temperature": rng.choice((0, 1.0)),
        "seed": number,
        "stream": kind in ("stream", "leaving", "slow"),
    }
    path, manner = COMPLETIONS, PATIENT
    if kind == "chat":
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    elif kind == "whole":
        body |= rng.choice(tuple(FEATURES.values()))
        body["max_tokens"] = max(body["max_tokens"], body.get("min_tokens", 0))  # else refused
    elif kind == "several":
        body |= {"n": 2, "temperature": 1.0}
    elif kind == "leaving":
        body["max_tokens"] = 200
        body["stream"] = rng.random() < 0.7
        manner = Manner(leaves_after=rng.choice((1, 200, 1000)))
    elif kind == "gone at once":
        manner = Manner(leaves_after=0)
    elif kind == "slow":
        manner = Manner(pause=rng.uniform(0.005, 0.03))
    elif kind == "mistaken":
        body |= rng.choice(
            ({"temperature": "hot"}, {"max_tokens": -1}, {"prompt": []}, {"model": "no-such"})
        )
    return kind, path, body, manner


def ending_of(kind: str, reply: SeenReply) -> str:
    """Outcome of a request: as expected, refused with a retry hint, or lost."""
    if reply.left or kind == "gone at once":
        return "left"
    if reply.status == 503 and reply.is_whole and "retry-after" in reply.headers:
        return "refused"
    if not reply.is_whole:
        return "lost"
    if kind == "mistaken":
        return "answered" if 400 <= reply.status < 500 else "lost"
    return "answered" if reply.status == 200 and not reply.has_error else "lost"


def in_words(reply: SeenReply) -> str:
    return f"status {reply.status}, {reply.problem or 'not whole or an error'}: {reply.body[-300:]}"
