"""Incremental detokenization of one output.

In: the prompt's token ids once, then output token ids. Out: new text per push, which is never
revised. Incomplete UTF-8 characters are withheld, also at the end. Must not know: stop strings,
requests, transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from tokenizers.decoders import DecodeStream

from jengine.text.tokenizer import REPLACEMENT, Tokenizer

logger = logging.getLogger(__name__)

_INVALID_PREFIX = "Invalid prefix encountered"
# A character has at most four bytes, so a longer run of held tokens is not one character.
_MOST_HELD = 16
_SHORTEST_TAIL, _LONGEST_TAIL = 4, 24


@final
class Detokenizer:
    """Incremental decoder: `push(token_ids)` returns new text, `finish()` the rest.

    Together they equal decoding prompt and output at once, minus the prompt's text and an
    incomplete final character, unless broken bytes change text already returned. Unknown ids give
    no text. `spaces_between_special_tokens=False` removes separators between added tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        joined = not skip_special_tokens and not spaces_between_special_tokens
        self._joined = tokenizer.added_tokens if joined else dict[int, str]()
        self._after_joined = False
        self._window: list[int] = []  # ids of the last returned text: context for the next
        self._pending: list[int] = []  # ids after it, whose text is not settled yet
        self._prompt_rest = ""  # text that the prompt's incomplete last character decodes to
        self._reopen([])
        self._prime(prompt_token_ids)

    def push(self, token_ids: Sequence[int]) -> str:
        """Text settled by these tokens; may be empty."""
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def finish(self) -> str:
        """The withheld text, without bytes of an incomplete character, as in vLLM (a full decode
        shows U+FFFD)."""
        text = self._pending_text().rstrip(REPLACEMENT) if self._pending else ""
        self._pending = []
        return self._without_prompt_rest(text)

    def _push_one(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        text = self._step(token_id)
        if token_id in self._joined and self._after_joined:
            text = self._joined[token_id]
        self._after_joined = token_id in self._joined
        return self._without_prompt_rest(text)

    def _step(self, token_id: int) -> str:
        try:
            text = self._next_text(token_id)
        except (OverflowError, TypeError):
            logger.warning("Token id %r is not in the vocabulary; it gives no text.", token_id)
            return ""
        except Exception as error:  # Rust errors are plain Exceptions
            if not str(error).startswith(_INVALID_PREFIX):
                raise
            return self._recover(token_id)
        self._pending.append(token_id)
        if text:
            self._window, self._pending = self._pending, []
            return text
        return self._settle() if len(self._pending) >= _MOST_HELD else ""

    def _recover(self, token_id: int) -> str:
        """Recover when bytes change text already returned (byte fallback).

        As in vLLM, decoding restarts at this token: text held back before it is lost, as is a
        leading space that decoders strip.
        """
        self._pending = []
        self._reopen([])
        return self._step(token_id)

    def _settle(self) -> str:
        """Release text that no later byte can change; re-reading a long run would take quadratic
        time."""
        text = self._pending_text()
        if not text:
            self._pending = []
            self._reopen(self._window)
            return ""
        kept = self._unfinished_tail(text)
        settled = text[: len(text) - len(self._decode(kept))]
        self._pending = []
        self._reopen([])
        return settled + "".join([self._step(token_id) for token_id in kept])

    def _unfinished_tail(self, text: str) -> list[int]:
        """Shortest suffix of ids whose removal keeps the rest's text unchanged; [] if none."""
        for length in (1, 2, 3):
            head, tail = self._pending[:-length], self._pending[-length:]
            if text == self._text_after_window(head) + self._decode(tail):
                return tail
        return []

    def _pending_text(self) -> str:
        return self._text_after_window(self._pending)

    def _text_after_window(self, token_ids: list[int]) -> str:
        known, whole = self._decode(self._window), self._decode(self._window + token_ids)
        return whole[len(known) :] if whole.startswith(known) else self._decode(token_ids)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special_tokens)

    def _reopen(self, window: list[int]) -> None:
        """Restart the stream after `window`, which is not returned again."""
        # A stream whose context ends with U+FFFD returns the context again.
        self._window = [] if self._decode(window).endswith(REPLACEMENT) else window
        self._next_text = _open_stream(self._tokenizer, self._window, self._skip_special_tokens)

    def _prime(self, prompt_token_ids: Sequence[int]) -> None:
        tail = self._prompt_tail(prompt_token_ids)
        if not self._decode(tail).endswith(REPLACEMENT):
            self._reopen(tail)
            return
        # A stream opened in the middle of a character returns the prompt again.
        for token_id in tail:
            self._step(token_id)
        self._prompt_rest = self._pending_text() if self._pending else ""

    def _prompt_tail(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """Shortest end of the prompt that has text and starts on a character boundary."""
        tail: list[int] = []
        for length in range(_SHORTEST_TAIL, min(len(prompt_token_ids), _LONGEST_TAIL) + 1):
            tail = self._visible(prompt_token_ids[-length:])
            text = self._decode(tail)
            if text and not text.startswith(REPLACEMENT):
                return tail
        return tail or self._visible(prompt_token_ids[-_LONGEST_TAIL:])

    def _visible(self, token_ids: Sequence[int]) -> list[int]:
        known = range(self._tokenizer.vocab_size)
        return [number for number in token_ids if number in known and number not in self._hidden]

    def _without_prompt_rest(self, text: str) -> str:
        if text and self._prompt_rest:
            text, self._prompt_rest = text.removeprefix(self._prompt_rest), ""
        return text


def _open_stream(
    tokenizer: Tokenizer, token_ids: list[int], skip_special_tokens: bool
) -> Callable[[int], str | None]:
    if tokenizer.backend is None:
        return _DecodeWindow(tokenizer, token_ids, skip_special_tokens).step
    stream = DecodeStream(ids=token_ids, skip_special_tokens=skip_special_tokens)
    return partial(stream.step, tokenizer.backend)


@final
class _DecodeWindow:
    """DecodeStream's algorithm on plain `decode`, for tokenizers written in Python."""

    def __init__(self, tokenizer: Tokenizer, window: list[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window = window
        self._pending: list[int] = []

    def step(self, token_id: int) -> str | None:
        if not 0 <= token_id < self._tokenizer.vocab_size:
            raise OverflowError(f"token id {token_id} is outside the vocabulary")
        self._pending.append(token_id)
        known, whole = self._decode(self._window), self._decode(self._window + self._pending)
        if whole.endswith(REPLACEMENT) or len(whole) <= len(known):
            return None
        if not whole.startswith(known):
            raise ValueError(f"{_INVALID_PREFIX} while decoding token id {token_id}")
        self._window, self._pending = self._pending, []
        return whole[len(known) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special_tokens)
