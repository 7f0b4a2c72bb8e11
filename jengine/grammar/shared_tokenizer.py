"""The tokenizer that grammars need, serialised from a front end to a core.

In: the front end's Tokenizer. Out: data from which `tokens` builds llguidance's tokenizer in the
core, which thus never imports transformers (seconds in which no step could run). Must not know
llguidance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import Fuse

from jengine.errors import UnsupportedFeature
from jengine.structured_outputs import NAME
from jengine.text.tokenizer import Tokenizer

# Head of tokenizer.json without truncation and padding.
NEITHER = '{"version":"1.0","truncation":null,"padding":null,'


class TokenizerData(msgspec.Struct, frozen=True):
    """A tokenizer whose tokens' bytes are known."""

    json: str  # as in tokenizer.json
    vocab_size: int
    eos_token_id: int | None
    special_ids: list[int]
    is_plain: bool  # tokens are plain text


def data_of(tokenizer: Tokenizer) -> TokenizerData:
    """Serialise a tokenizer accepted by `check_tokenizer`."""
    assert tokenizer.backend is not None, "checked"
    text = tokenizer.backend.to_str()
    if not text.startswith(NEITHER):  # on a copy, as other threads tokenize with the original
        backend = Backend.from_str(text)
        backend.no_padding()
        backend.no_truncation()
        text = backend.to_str()
    return TokenizerData(
        text,
        tokenizer.vocab_size,
        tokenizer.eos_token_id,
        sorted(tokenizer.special_ids),
        isinstance(tokenizer.backend.decoder, Fuse),
    )


class SharedTokenizer:
    """A core's copy. All front ends have the same tokenizer, so the first one is kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data: TokenizerData | None = None
        self._listener: Callable[[], None] | None = None

    def tell(self, data: TokenizerData) -> None:
        """Receive a front end's tokenizer."""
        with self._lock:
            listener = None if self._data else self._listener
            self._data = self._data or data
        if listener is not None:
            listener()

    def when_told(self, listener: Callable[[], None]) -> None:
        """Call back once a tokenizer was received."""
        with self._lock:
            self._listener = listener
            told = self._data is not None
        if told:
            listener()

    @property
    def data(self) -> TokenizerData:
        """The tokenizer, which front ends send before any request with a grammar. Raises
        UnsupportedFeature."""
        if self._data is None:
            raise UnsupportedFeature(f"{NAME}: no front of this core has told its tokenizer.")
        return self._data
