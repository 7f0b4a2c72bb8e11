"""Traces: when requests arrive, what they say, and how long their answers are.

In: settings. Out: requests in the order of their arrival; a conversation's next turn is known only
when the turn before it has ended. Must not know replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

# Numbers are drawn this many at a time.
CHUNK = 4096


@dataclass(slots=True)
class Conversation:
    """The turns that follow the one being answered."""

    turns: list[Turn]  # the next one last


class Turn(NamedTuple):
    """A future turn of a conversation."""

    prompt: list[int]  # what the user adds
    answer: int  # tokens of the answer
    think: float  # seconds between the answer before it and this turn
    earliest: float = 0.0


@dataclass(slots=True)
class SimulatedRequest:
    """One request: a prompt, and its number of output tokens."""

    name: str
    prompt: list[int]
    answer: int
    conversation: Conversation | None = None


Arrival = tuple[float, SimulatedRequest]


class Trace(Protocol):
    """Requests over time."""

    @property
    def has_turns(self) -> bool:
        """Whether the end of a request can trigger another one."""

    def arrivals(self) -> Iterator[Arrival]:
        """Yield the requests that are independent of others, by arrival time."""


def next_turn(ask: SimulatedRequest, answer: list[int], now: float, longest: int) -> Arrival | None:
    """The conversation's next turn after an answer; None if there is none or it exceeds `longest`
    tokens."""
    conversation = ask.conversation
    if conversation is None or not conversation.turns:
        return None
    turn = conversation.turns.pop()
    prompt = [*ask.prompt, *answer, *turn.prompt]
    if len(prompt) + turn.answer > longest:
        return None
    return max(now + turn.think, turn.earliest), SimulatedRequest(
        ask.name, prompt, turn.answer, conversation
    )


@dataclass(frozen=True)
class TraceSettings:
    """Parameters of a synthetic trace. Lengths are means, in tokens."""

    requests: int = 10_000
    rate: float = 10.0  # requests per second, of all replicas
    burstiness: float = 1.0  # shape of the gamma distribution of intervals; 1: Poisson
    input_len: int = 512  # beyond a shared prefix
    output_len: int = 128
    spread: float = 0.0  # standard deviation of lengths over their mean; 0: all are alike
    prefixes: int = 0  # prompts begin with one of so many texts
    prefix_len: int = 0
    turns: int = 1
    think: float = 5.0  # seconds between an answer and the next turn, on average
    seed: int = 0
    vocab_size: int = 32_000
    longest: int = 2**31  # tokens of a prompt and its answer
    # This trace has every `of`-th request from `part` on: those of one group of replicas.
    part: int = 0
    of: int = 1


@dataclass
class SyntheticTrace:
    """Arrivals at a rate; lengths that vary; prefixes that prompts share; turns."""

    settings: TraceSettings
    _tokens: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        # Times and lengths are drawn alike for all parts, contents for each.
        self._tokens = np.random.default_rng((self.settings.seed, 1, self.settings.part))

    @property
    def has_turns(self) -> bool:
        return self.settings.turns > 1

    def arrivals(self) -> Iterator[Arrival]:
        given, now = self.settings, 0.0
        shared = np.random.default_rng((given.seed, 0))
        prefixes = [self._text(shared, given.prefix_len) for _ in range(given.prefixes)]
        count = -(-given.requests // given.turns)
        rate = given.rate / given.turns
        for first in range(0, count, CHUNK):
            size = min(CHUNK, count - first)
            waits = shared.gamma(given.burstiness, 1 / (rate * given.burstiness), size)
            inputs = lengths(shared, given.input_len, given.spread, (size, given.turns))
            outputs = lengths(shared, given.output_len, given.spread, (size, given.turns))
            thinks = shared.exponential(given.think, (size, given.turns))
            chosen = shared.integers(0, max(given.prefixes, 1), size)
            for index in range(size):
                now += float(waits[index])
                if (first + index) % given.of != given.part:
                    continue
                prefix = prefixes[chosen[index]] if prefixes else []
                ask = self._ask(first + index, prefix, inputs[index], outputs[index], thinks[index])
                yield now, ask

    def _ask(
        self, number: int, prefix: list[int], inputs: np.ndarray, outputs: np.ndarray,
        thinks: np.ndarray,
    ) -> SimulatedRequest:  # fmt: skip
        longest = self.settings.longest
        answer = min(int(outputs[0]), max(longest - 1 - len(prefix), 1))
        room = max(longest - answer - len(prefix), 1)
        prompt = prefix + self._text(self._tokens, min(int(inputs[0]), room))
        if len(inputs) == 1:
            return SimulatedRequest(f"{number}", prompt, answer)
        turns = [
            Turn(self._text(self._tokens, int(inputs[i])), int(outputs[i]), float(thinks[i]))
            for i in range(len(inputs) - 1, 0, -1)
        ]
        return SimulatedRequest(f"{number}", prompt, answer, Conversation(turns))

    def _text(self, rng: np.random.Generator, length: int) -> list[int]:
        return rng.integers(1, self.settings.vocab_size, length).tolist()


def lengths(
    rng: np.random.Generator, mean: int, spread: float, shape: tuple[int, int]
) -> np.ndarray:
    """Sample log-normal lengths with this mean, at least 1."""
    if not spread:
        return np.full(shape, mean)
    variance = np.log1p(spread**2)
    drawn = rng.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), shape)
    return np.maximum(np.rint(drawn).astype(int), 1)
