"""Shows an answer while it is generated, and measures its speed.

In: an iterator of RequestOutputs that each hold the new text only. Out: an Answer.
Must not know commands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jengine.outputs import RequestOutput


@dataclass
class Answer:
    """The text of one answer, its number of tokens, and how long they took."""

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
        """Generated tokens per second of the whole request, prefill included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def speed(self) -> str:
        """Tokens, time to first token and speed, on one line."""
        if self.seconds_to_first is None:
            return f"no token in {self.seconds:.2f} s"
        stopped = " until it was stopped" if self.interrupted else ""
        return (
            f"{self.tokens} tokens{stopped}, first after {self.seconds_to_first:.2f} s, "
            f"{self.tokens_per_second:.1f} tokens/s, prompt of {self.prompt_tokens} tokens"
        )

    def take(self, output: RequestOutput) -> str:
        """Add an output's new tokens and return their text."""
        part = output.outputs[0]
        self.prompt_tokens = len(output.prompt_token_ids)
        self.tokens += len(part.token_ids)
        if part.token_ids and self.seconds_to_first is None:
            self.seconds_to_first = time.perf_counter() - self.began
        self.finish_reason = part.finish_reason
        self.error = output.error
        self.text += part.text
        return part.text


def stream_answer(outputs: Generator[RequestOutput], write: Callable[[str], None]) -> Answer:
    """Write an answer as it comes. Ctrl-C ends the answer, not the engine."""
    answer = Answer()
    # The API's streams are generators: closing one aborts its request.
    with closing(outputs):
        try:
            for output in outputs:
                write(answer.take(output))
        except KeyboardInterrupt:
            answer.interrupted = answer.finish_reason is None  # else it was complete
    answer.seconds = time.perf_counter() - answer.began
    return answer
