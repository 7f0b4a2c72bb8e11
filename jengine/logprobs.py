"""Log-probabilities as arrays, as computed by steps, and as the tables that users read.

A table maps token ids to `Logprob` at one position, as in vLLM. Tables are built lazily: for a
prompt of 100,000 tokens with 20 log-probabilities each, building all takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

# Context tokens needed to decode a token's text.
TEXT_CONTEXT = 3


class StepLogprobs(NamedTuple):
    """Log-probabilities per position: the chosen token's, then the top k; and the chosen token's
    rank."""

    values: np.ndarray  # f32 [positions, 1 + k]
    ids: np.ndarray  # i32 [positions, 1 + k]
    rank: np.ndarray  # i32 [positions]

    def cut(self, begin: int, end: int) -> StepLogprobs:
        """Slice of positions."""
        return StepLogprobs(*(array[begin:end] for array in self))

    def top(self, count: int) -> StepLogprobs:
        """Keep the chosen token and the top `count`; -1: all."""
        columns = slice(None if count < 0 else 1 + count)
        return StepLogprobs(self.values[..., columns], self.ids[..., columns], self.rank)

    @classmethod
    def joined(cls, parts: list[StepLogprobs]) -> StepLogprobs:
        """Concatenate in order."""
        if not parts:
            empty = np.zeros((0, 1), np.float32)
            return cls(empty, empty.astype(np.int32), np.zeros(0, np.int32))
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


@dataclass(slots=True)
class Logprob:
    """One token's log-probability at one position."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


Table = dict[int, Logprob]


class TextsOfTokens(Protocol):
    """Decodes candidate tokens at one position."""

    def of(self, token_ids: list[int], context: Sequence[int]) -> Sequence[str | None]:
        """One text per token id; `context`: the preceding tokens."""
        ...


class NoTexts:
    """Stand-in for an engine without a tokenizer."""

    def of(self, token_ids: list[int], context: Sequence[int]) -> Sequence[None]:
        return [None] * len(token_ids)


class LogprobTables(Sequence[Any]):
    """Lazy sequence of one table per position. Equal to a list of the same tables.

    `tokens` are the tokens with enough context before them for their texts; row i of the scores is
    about `tokens[first + i]`. The first token of a prompt has no score: with `opens_prompt` a None
    precedes the first row.
    """

    def __init__(
        self,
        scores: StepLogprobs,
        tokens: Sequence[int],
        first: int,
        texts: TextsOfTokens,
        *,
        opens_prompt: bool = False,
    ) -> None:
        self.scores = scores
        self._tokens = tokens
        self._first = first
        self._texts = texts
        self._ahead = int(opens_prompt)

    def __len__(self) -> int:
        return len(self.scores.rank) + self._ahead

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"position {index} of {len(self)}")
        row = position - self._ahead
        return self._table(row) if row >= 0 else None

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, LogprobTables)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] - as a list

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> Any:
        """Copy and pickle as plain lists, since texts need the tokenizer."""
        return list, (list(self),)

    def _table(self, row: int) -> Table:
        """Build a table: the chosen token first, then the top ones."""
        ids, values = self.scores.ids[row].tolist(), self.scores.values[row].tolist()
        end = self._first + row
        texts = self._texts.of(ids, self._tokens[max(0, end - TEXT_CONTEXT) : end])
        table = {ids[0]: Logprob(values[0], int(self.scores.rank[row]), texts[0])}
        for rank in range(1, len(ids)):
            if ids[rank] not in table:
                table[ids[rank]] = Logprob(values[rank], rank, texts[rank])
        return table


class ScoreBuffer:
    """Append-only log-probabilities of a growing answer. Appending takes amortised constant
    time."""

    def __init__(self) -> None:
        self._arrays: StepLogprobs | None = None
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def append(self, scores: StepLogprobs) -> None:
        """Append positions."""
        end = self._used + len(scores.rank)
        if self._arrays is None or end > len(self._arrays.rank):
            self._grow(scores, 2 * end)
        assert self._arrays is not None
        for own, new in zip(self._arrays, scores, strict=True):
            own[self._used : end] = new
        self._used = end

    def view(self, begin: int, end: int) -> StepLogprobs:
        """Slice of positions, without a copy: existing ones never change."""
        return StepLogprobs.joined([]) if self._arrays is None else self._arrays.cut(begin, end)

    def _grow(self, like: StepLogprobs, capacity: int) -> None:
        """Move to larger arrays; views keep the old ones."""
        larger = StepLogprobs(
            *(np.empty((capacity, *array.shape[1:]), array.dtype) for array in like)
        )
        if self._arrays is not None:
            for new, old in zip(larger, self._arrays, strict=True):
                new[: self._used] = old[: self._used]
        self._arrays = larger
