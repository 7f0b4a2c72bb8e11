"""Memoised texts of single tokens, for log-probability tables.

In: token ids and preceding tokens. Out: the text each adds. Tokens that are part of a character
depend on the tokens before. Must not know: log-probabilities, requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from jengine.text.tokenizer import REPLACEMENT, Tokenizer


@final
class TokenTexts:
    """Token texts of one tokenizer. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Token id -> its text after complete text; None: depends on the tokens before.
        self._known: dict[int, str | None] = {}
        # An ordinary token as context, so that decoders keep a leading space.
        usual = tokenizer.encode("a", add_special_tokens=False) if tokenizer.backend else []
        self._before = usual[-1:]

    def of(self, token_ids: list[int], context: Sequence[int]) -> list[str]:
        """Text that each token would add after `context`."""
        known = self._known
        missing = {number for number in (*token_ids, *context[-1:]) if number not in known}
        if missing:
            self._learn(missing)
        # After an incomplete character the next tokens may complete it.
        whole = bool(context) and known[context[-1]] is not None
        texts = [known[number] for number in token_ids]
        return [
            text if whole and text is not None else self._tokenizer.token_text(number, context)
            for number, text in zip(token_ids, texts, strict=True)
        ]

    def _learn(self, token_ids: Iterable[int]) -> None:
        backend = self._tokenizer.backend
        if backend is None or not self._before:
            self._known.update(dict.fromkeys(token_ids))
            return
        before = backend.decode(self._before, skip_special_tokens=False)
        for number in token_ids:
            text = backend.decode([*self._before, number], skip_special_tokens=False)
            own = text[len(before) :] if text.startswith(before) else REPLACEMENT
            self._known[number] = None if REPLACEMENT in own else own
