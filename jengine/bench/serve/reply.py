"""One streamed answer as the client sees it: chunk times and contents.

In: parts of the response's body with the moment at which they came. Out, after `end`: times, text,
counts. Parts are only kept while they come: what other answers get meanwhile would wait for the
reading, and its time would count as the server's.
"""

from __future__ import annotations

import itertools
import time

import msgspec

from jengine.client.errors import error_of, message_in
from jengine.client.event_reader import DONE, EventReader, Usage, read_chunk
from jengine.client.response_reader import ResponseReader


class TimedReply:
    """The response to one request. Times are time.perf_counter() values."""

    def __init__(self, prompt_len: int, arrived: float) -> None:
        self.arrived = arrived  # when it was due; it may have waited here for its turn
        self.started = time.perf_counter()
        self.times: list[float] = []  # of chunks with new tokens
        self.texts: list[str] = []
        self.token_ids: list[list[int]] = []  # of each chunk, where the server sends them
        self.usage: Usage | None = None
        self.error = ""
        self._prompt_len = prompt_len
        self._events = EventReader()
        self._refusal = b""
        self._done = False
        self._kept: list[tuple[bytes, float]] = []  # parts of the body that are not read yet

    def receive(self, response: ResponseReader, body: bytes, now: float) -> None:
        """Keep the next bytes of the body."""
        if response.status != 200:
            self._refusal += body
            if response.complete:
                self.error = str(error_of(response.status, self._refusal, "the server"))
            return
        self._kept.append((body, now))

    def _take(self, event: bytes, now: float) -> None:
        try:
            chunk = read_chunk(event)
        except msgspec.DecodeError as error:
            self.error = f"a chunk cannot be read: {error}: {event[:100]!r}"
            return
        if chunk.error is not None:
            self.error = message_in(chunk.error)
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices:
            if not choice.opens:
                self.times.append(now)
                self.texts.append(choice.added)
                self.token_ids.append(choice.token_ids or [])

    def end(self) -> None:
        """Read the response, which has ended; record an error if it is incomplete. Twice is
        harmless."""
        kept, self._kept = self._kept, []
        for body, now in kept:
            for event in self._events.feed(body):
                if event == DONE:
                    self._done = True
                else:
                    self._take(event, now)
        if not self.error and not self.times:
            self.error = "the stream ended without a token"
        if not self.error and not self._done:
            self.error = "the stream ended without [DONE]"

    @property
    def success(self) -> bool:
        """Whether the response is complete and without error."""
        return not self.error and bool(self.times)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def prompt_len(self) -> int:
        """Prompt tokens: as reported by the server, else as intended."""
        counted = 0 if self.usage is None else self.usage.prompt_tokens
        return counted or self._prompt_len

    @property
    def output_len(self) -> int:
        """Output tokens: as reported by the server, else the number of chunks."""
        counted = None if self.usage is None else self.usage.completion_tokens
        return len(self.times) if counted is None else counted

    @property
    def ttft(self) -> float:
        """Time to first token in seconds."""
        return self.times[0] - self.started if self.times else 0.0

    @property
    def latency(self) -> float:
        """End-to-end latency in seconds."""
        return self.times[-1] - self.started if self.times else 0.0

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies in seconds (between chunks)."""
        return [after - before for before, after in itertools.pairwise(self.times)]

    @property
    def tpot(self) -> float:
        """Time per output token after the first, in seconds; 0 for a single token."""
        return (self.latency - self.ttft) / (self.output_len - 1) if self.output_len > 1 else 0.0

    @property
    def queued(self) -> float:
        """Seconds spent queued in the client under --max-concurrency."""
        return self.started - self.arrived
