"""Builds llguidance's tokenizer: the bytes of each token, and the end tokens.

In: a tokenizer as plain data. Out: llguidance's, built once per engine: up to a second for a large
vocabulary, holding the GIL. llguidance understands byte-level BPE, byte fallback and metaspace;
plain-text tokens are passed by `PlainTokens`. Others are refused: with wrong bytes a grammar would
allow wrong texts.
"""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer as Backend

from jengine.errors import UnsupportedFeature
from jengine.grammar.shared_tokenizer import TokenizerData
from jengine.structured_outputs import NAME


def llguidance_tokenizer(
    data: TokenizerData, vocab_size: int, eos_token_ids: Sequence[int]
) -> LLTokenizer:
    """Build it for logits of `vocab_size`. Raises UnsupportedFeature."""
    ends = [*eos_token_ids]
    if not ends and data.eos_token_id is not None:
        ends = [data.eos_token_id]
    if not ends:
        raise UnsupportedFeature(
            f"{NAME}: neither the model nor its tokenizer names a token that ends an answer, so a "
            "complete answer could not end. Set eos_token_id in generation_config.json."
        )
    size = max(vocab_size, data.vocab_size)
    if data.is_plain:
        plain = TokenizerWrapper(PlainTokens(data, size, ends[0]))
        return LLTokenizer(plain, n_vocab=size, eos_token=ends)
    try:
        return LLTokenizer(data.json, n_vocab=size, eos_token=ends)
    except ValueError as error:
        raise UnsupportedFeature(
            f"{NAME}: the bytes of this tokenizer's tokens are not known ({error}). Leave it out."
        ) from error


class PlainTokens:
    """A tokenizer whose tokens are their own text."""

    def __init__(self, data: TokenizerData, size: int, eos: int) -> None:
        self._backend = backend = Backend.from_str(data.json)
        self.eos_token_id = eos
        self.bos_token_id = None
        names = [backend.id_to_token(number) or "" for number in range(size)]
        self.tokens = [name.encode() for name in names]
        unused = (number for number, name in enumerate(names) if not name)
        self.special_token_ids = sorted({*data.special_ids, *unused})

    def __call__(self, text: str | bytes) -> list[int]:
        """Encode a text."""
        plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._backend.encode(plain, add_special_tokens=False).ids
