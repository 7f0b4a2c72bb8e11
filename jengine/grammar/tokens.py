"""A tokenizer as llguidance needs it: the bytes of every token, and which ones end a text.

In: our Tokenizer. Out: llguidance's. Made once per engine, when the first grammar is compiled: it
takes up to a second for a large vocabulary. llguidance reads tokens as byte-level BPE, byte
fallback and metaspace write them; tokens that are plain text are given to it here. Other
tokenizers are refused: with wrong bytes a grammar would allow wrong texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from llguidance import LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer as Backend

from jengine.errors import UnsupportedFeature
from jengine.grammar.tokenizer_check import check_tokenizer
from jengine.structured_outputs import NAME
from jengine.text.tokenizer import Tokenizer


def llguidance_tokenizer(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]
) -> LLTokenizer:
    """For a model whose logits have `vocab_size` entries."""
    check_tokenizer(tokenizer)
    assert tokenizer.backend is not None, "checked"
    # A copy: other threads tokenize with the original.
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.no_padding()
    backend.no_truncation()
    ends = [*eos_token_ids]
    if not ends and tokenizer.eos_token_id is not None:
        ends = [tokenizer.eos_token_id]
    if not ends:
        raise UnsupportedFeature(
            f"{NAME}: neither the model nor its tokenizer names a token that ends an answer, so a "
            "complete answer could not end. Set eos_token_id in generation_config.json."
        )
    size, text = max(vocab_size, tokenizer.vocab_size), backend.to_str()
    if (json.loads(text).get("decoder") or {}).get("type") == "Fuse":
        plain = TokenizerWrapper(PlainTokens(backend, tokenizer, size, ends[0]))
        return LLTokenizer(plain, n_vocab=size, eos_token=ends)
    try:
        return LLTokenizer(text, n_vocab=size, eos_token=ends)
    except ValueError as error:
        raise UnsupportedFeature(
            f"{NAME}: the bytes of this tokenizer's tokens are not known ({error}). Leave it out."
        ) from error


class PlainTokens:
    """A tokenizer whose tokens are the texts that they stand for."""

    def __init__(self, backend: Backend, tokenizer: Tokenizer, size: int, eos: int) -> None:
        self._backend = backend
        self.eos_token_id = eos
        self.bos_token_id = None
        names = [backend.id_to_token(number) or "" for number in range(size)]
        self.tokens = [name.encode() for name in names]
        unused = (number for number, name in enumerate(names) if not name)
        self.special_token_ids = sorted({*tokenizer.special_ids, *unused})

    def __call__(self, text: str | bytes) -> list[int]:
        """Its token ids."""
        plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._backend.encode(plain, add_special_tokens=False).ids
