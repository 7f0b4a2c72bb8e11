"""Streams an answer to the terminal and measures its speed.

In: an iterator of Pieces, or of delta RequestOutputs. Out: an Answer. Must not know commands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jengine.outputs import RequestOutput


@dataclass(frozen=True)
class AnswerPiece:
    """Increment of an answer. `total`: all completion tokens so far, where a server counts them."""

    text: str = ""
    thought: str = ""  # reasoning, which is not part of the answer
    tokens: int = 0
    total: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None


def pieces_of(outputs: Generator[RequestOutput]) -> Generator[AnswerPiece]:
    """Convert an engine's stream to pieces. Closing it closes the stream, which aborts the
    request."""
    with closing(outputs):
        for output in outputs:
            part = output.outputs[0]
            yield AnswerPiece(
                part.text,
                tokens=len(part.token_ids),
                prompt_tokens=len(output.prompt_token_ids),
                finish_reason=part.finish_reason,
                error=output.error,
            )


@dataclass
class TimedAnswer:
    """Text, token count and timings of one answer."""

    text: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0
    seconds_to_first: float | None = None
    finish_reason: str | None = None
    interrupted: bool = False
    error: str | None = None
    began: float = field(default_factory=time.perf_counter)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second over the whole request, prefill included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def speed(self) -> str:
        """One line: tokens, time to first token, tokens per second."""
        if self.seconds_to_first is None:
            return f"no token in {self.seconds:.2f} s"
        stopped = " until it was stopped" if self.interrupted else ""
        return (
            f"{self.tokens} tokens{stopped}, first after {self.seconds_to_first:.2f} s, "
            f"{self.tokens_per_second:.1f} tokens/s, prompt of {self.prompt_tokens} tokens"
        )

    def take(self, piece: AnswerPiece) -> str:
        """Add a piece and return its text."""
        if piece.prompt_tokens is not None:
            self.prompt_tokens = piece.prompt_tokens
        self.tokens = self.tokens + piece.tokens if piece.total is None else piece.total
        if piece.tokens and self.seconds_to_first is None:
            self.seconds_to_first = time.perf_counter() - self.began
        self.finish_reason = piece.finish_reason or self.finish_reason
        self.error = piece.error or self.error
        self.text += piece.text
        return piece.text


def stream_answer(
    pieces: Generator[AnswerPiece],
    write: Callable[[str], None],
    aside: Callable[[str], None] = lambda _: None,
) -> TimedAnswer:
    """Write an answer as it streams, with its reasoning to `aside`. Ctrl-C ends the answer, not the
    engine."""
    answer, thinking = TimedAnswer(), False
    with closing(pieces):
        try:
            for piece in pieces:
                if piece.thought:
                    aside(piece.thought)
                elif thinking and piece.text:
                    aside("\n\n")
                thinking = bool(piece.thought) or (thinking and not piece.text)
                write(answer.take(piece))
        except KeyboardInterrupt:
            answer.interrupted = answer.finish_reason is None  # else the answer was complete
    answer.seconds = time.perf_counter() - answer.began
    return answer
