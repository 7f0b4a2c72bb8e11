"""Log-probabilities in the forms of /v1/completions and /v1/chat/completions.

In: tables of an output, one per token, the token itself first. Out: structs. JSON has no infinity,
so -inf becomes -9999; NaN is an error, since null would hide broken logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import msgspec

from jengine.logprobs import Logprob, Table
from jengine.server.errors import ApiError
from jengine.text.tokenizer import Tokenizer

LEAST = -9999.0


class CompletionLogprobs(msgspec.Struct):
    """OpenAI's parallel lists: one entry per token in each."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class TopLogprob(msgspec.Struct):
    """An alternative token at a position."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct):
    """A generated token with its log-probability and top alternatives."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """The log-probabilities of a message."""

    content: list[TokenLogprob]


class PromptLogprob(msgspec.Struct):
    """A candidate token at a prompt position."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[str, PromptLogprob] | None]


def finite(value: float) -> float:
    """Clamp -inf to a finite number, since JSON has no infinities."""
    if math.isnan(value):
        raise ApiError(
            500,
            "A log-probability is NaN: the model's logits were not finite. Check its weights and "
            "dtype.",
        )
    return max(value, LEAST)


def prompt_logprobs(tables: Sequence[Table | None]) -> PromptLogprobs:
    """Prompt log-probabilities in vLLM's form; the first position is null."""
    return [None if table is None else _prompt_table(table) for table in tables]


def _prompt_table(table: Table) -> dict[str, PromptLogprob]:
    return {
        str(token): PromptLogprob(finite(entry.logprob), entry.rank, entry.decoded_token)
        for token, entry in table.items()
    }


class LogprobFormat:
    """Writes tokens as text, or as `token_id:N` if requested (return_tokens_as_token_ids)."""

    def __init__(self, tokenizer: Tokenizer | None, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids or tokenizer is None

    def completion(
        self, token_ids: Sequence[int], tables: Sequence[Table | None], count: int, offset: int = 0
    ) -> CompletionLogprobs:
        """Format a completion's tokens, each with its `count` top tokens (-1: all).

        The token itself is always among them, with the identical number.
        """
        result = CompletionLogprobs([], [], [], [])
        for token, table in zip(token_ids, tables, strict=True):
            text = self._text(token, None if table is None else table[token])
            result.text_offset.append(offset)
            result.tokens.append(text)
            offset += len(text)
            own = None if table is None else finite(table[token].logprob)
            result.token_logprobs.append(own)
            result.top_logprobs.append(None if table is None else self._top(table, count))
        return result

    def chat(
        self, token_ids: Sequence[int], tables: Sequence[Table], count: int | None
    ) -> ChatLogprobs:
        """Format a message's tokens, each with the first `count` entries of its table (-1 or None:
        all).

        As in vLLM the token itself comes first; if it is not in the top `count`, the last of these
        is left out.
        """
        return ChatLogprobs(
            [
                self._chat_token(token, table, count)
                for token, table in zip(token_ids, tables, strict=True)
            ]
        )

    def _chat_token(self, token: int, table: Table, count: int | None) -> TokenLogprob:
        own, decoded = self._text(token, table[token]), table[token].decoded_token
        # Bytes of the text, even if the token is written as an id.
        own_bytes = _bytes(own if decoded is None else decoded)
        most = None if count is None or count < 0 else count
        top = [
            TopLogprob(text := self._text(other, entry), finite(entry.logprob), _bytes(text))
            for other, entry in islice(table.items(), most)
        ]
        return TokenLogprob(own, finite(table[token].logprob), own_bytes, top)

    def _top(self, table: Table, count: int) -> dict[str, float]:
        # The token itself comes first, so it wins over tokens with equal text.
        top: dict[str, float] = {}
        for place, (token, entry) in enumerate(table.items()):
            if count < 0 or place <= count:
                top.setdefault(self._text(token, entry), finite(entry.logprob))
        return top

    def _text(self, token: int, entry: Logprob | None) -> str:
        if self._as_ids or self._tokenizer is None:
            return f"token_id:{token}"
        if entry is None or entry.decoded_token is None:
            return self._tokenizer.decode([token], skip_special_tokens=False)
        return entry.decoded_token


def _bytes(text: str) -> list[int]:
    return list(text.encode("utf-8", "replace"))
