"""Canary: repeats one greedy request, whose tokens must never change.

In: a port. Out: how many answers there were, how many were other tokens, how many failed, and when.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from jengine.bench.marathon.exchange import Manner, SeenReply, exchange

BODY = {
    "prompt": "Once upon a time there was a canary in a mine. It sang",
    "max_tokens": 24,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
}
PATIENCE = Manner(patience=60.0)


class Canary:
    """Sends the request twice a second. The first answer, before any load, is the reference."""

    def __init__(self, port: int, is_disturbed: Callable[[], bool], pause: float = 0.5) -> None:
        self.port = port
        self.pause = pause
        self._is_disturbed = is_disturbed
        self.song: Any = None
        self.sung = 0
        self.other: list[str] = []  # songs with other tokens
        self.failures: list[str] = []  # while nothing was injected
        self.calm = 0  # songs while nothing was injected
        self.disturbed = 0
        self.disturbed_failures = 0

    async def learn(self) -> None:
        """Get the reference answer."""
        reply = await self._ask()
        self.song = song_of(reply)
        if self.song is None:
            raise RuntimeError(f"the canary got no answer: {reply}")

    async def sing(self) -> None:
        """Send until cancelled."""
        while True:
            await self.once()
            await asyncio.sleep(self.pause)

    async def once(self) -> None:
        """Send one request and compare its answer with the reference."""
        disturbed = self._is_disturbed()
        reply = await self._ask()
        disturbed = disturbed or self._is_disturbed()
        song = song_of(reply)
        self.sung += 1
        self.calm += not disturbed
        self.disturbed += disturbed
        if song is None and disturbed:
            self.disturbed_failures += 1
        elif song is None:
            self.failures.append(f"status {reply.status} {reply.problem}: {reply.body[-200:]}")
        elif song != self.song:
            self.other.append(f"{song} instead of {self.song}")

    async def _ask(self) -> SeenReply:
        return await exchange(self.port, "POST", "/v1/completions", BODY, PATIENCE)


def song_of(reply: SeenReply) -> Any:
    """(token ids, text) of an answer; None if it failed."""
    if reply.status != 200 or not reply.is_whole:
        return None
    choice = json.loads(reply.body)["choices"][0]
    if choice["finish_reason"] != "length":
        return None
    return choice.get("token_ids"), choice["text"]
