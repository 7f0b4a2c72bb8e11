"""Builds a `tokenizers.Tokenizer` per vocabulary type, without special tokens.

In: a Vocabulary. Out: normalizer, pre-tokenizer, model and decoder as in such models'
tokenizer.json. Must not know files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from jengine.text.vocabulary.splits import SPLITTINGS, Splitting
from jengine.text.vocabulary.stored import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
)

SPACE = "▁"  # SentencePiece's space
MOST_PIECE = 256  # longest token, in characters, that merges can make


def splitting_of(vocabulary: Vocabulary) -> Splitting:
    """Pre-tokenization rules. Raises CheckpointError for unknown ones."""
    if vocabulary.splitting not in SPLITTINGS:
        raise vocabulary.refuse(
            f"its texts are split as {vocabulary.splitting!r} (tokenizer.ggml.pre), which is not"
            f" built: known are {', '.join(sorted(SPLITTINGS))}"
        )
    return SPLITTINGS[vocabulary.splitting]


def byte_pairs(vocabulary: Vocabulary) -> Tokenizer:
    """GPT-2's byte-level BPE."""
    splitting = splitting_of(vocabulary)
    found = Tokenizer(models.BPE(
        _ids(vocabulary.tokens), merges_of(vocabulary), fuse_unk=False, byte_fallback=False,
        ignore_merges=splitting.whole_words,
    ))  # fmt: skip
    _set(found, splitting.normalizer(), splitting.pre_tokenizer(), decoders.ByteLevel())
    return found


def scored_pairs(vocabulary: Vocabulary) -> Tokenizer:
    """SentencePiece BPE with byte fallback: merges ranked by the scores of the merged tokens."""
    tokens = spaced(vocabulary)
    merges = merges_of(vocabulary) or scored_merges(vocabulary, tokens)
    return _sentence_pieces(vocabulary, tokens, merges, vocabulary.flag("add_space_prefix", True))


def listed_pairs(vocabulary: Vocabulary) -> Tokenizer:
    """Gemma 4's: as `scored_pairs`, with a merge list."""
    prefix = vocabulary.flag("add_space_prefix", False)
    return _sentence_pieces(vocabulary, spaced(vocabulary), merges_of(vocabulary), prefix)


def _sentence_pieces(
    vocabulary: Vocabulary, tokens: list[str], merges: list[tuple[str, str]], prefix: bool
) -> Tokenizer:
    found = Tokenizer(models.BPE(
        _ids(tokens), merges, unk_token=vocabulary.role("unk"), fuse_unk=True, byte_fallback=True,
    ))  # fmt: skip
    normal = [normalizers.Prepend(SPACE)] if prefix else []
    decode = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    _set(
        found,
        normalizers.Sequence([*normal, normalizers.Replace(" ", SPACE)]),
        None,
        decoders.Sequence([*decode, *([decoders.Strip(" ", 1, 0)] if prefix else [])]),
    )
    return found


def unigrams(vocabulary: Vocabulary) -> Tokenizer:
    """SentencePiece unigram model."""
    pairs = list(zip(vocabulary.tokens, map(float, vocabulary.scores), strict=True))
    unknown = vocabulary.id_of("unk")
    has_bytes = bool(np.any(vocabulary.types == BYTE))
    found = Tokenizer(models.Unigram(pairs, 0 if unknown is None else unknown, has_bytes))
    scheme = "always" if vocabulary.flag("add_space_prefix", True) else "never"
    charsmap = vocabulary.metadata.get("tokenizer.ggml.precompiled_charsmap")
    normal = [] if charsmap is None else [normalizers.Precompiled(np.asarray(charsmap).tobytes())]
    if vocabulary.flag("remove_extra_whitespaces", True):
        normal += [normalizers.Strip(left=False, right=True)]
        normal += [normalizers.Replace(Regex(" {2,}"), " ")]
    split = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme)
    decode = decoders.Metaspace(SPACE, prepend_scheme=scheme)
    _set(found, normalizers.Sequence(normal), split, decode)
    return found


def word_pieces(vocabulary: Vocabulary) -> Tokenizer:
    """BERT's WordPiece: greedy longest match within words."""
    tokens = [_word_piece(token) for token in vocabulary.tokens]
    unknown = vocabulary.role("unk")
    if unknown is None:
        raise vocabulary.refuse("no token is said to be the unknown one")
    found = Tokenizer(models.WordPiece(_ids(tokens), unk_token=unknown))
    names = vocabulary.with_type(NORMAL)
    lower = vocabulary.flag("normalizer.lowercase", not any(_is_upper(one) for one in names))
    strip = vocabulary.flag("normalizer.strip_accents", lower)
    normal = normalizers.BertNormalizer(lowercase=lower, strip_accents=strip)
    _set(found, normal, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece())
    return found


BUILDERS: dict[str, Callable[[Vocabulary], Tokenizer]] = {
    "gpt2": byte_pairs,
    "llama": scored_pairs,
    "gemma4": listed_pairs,
    "t5": unigrams,
    "bert": word_pieces,
}


def merges_of(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Pairs of the merge list; a first half may begin with a space."""
    found = []
    for merge in vocabulary.merges:
        at = merge.find(" ", 1)
        if at < 0:
            raise vocabulary.refuse(f"the merge {merge!r} is no pair")
        found.append((merge[:at], merge[at + 1 :]))
    return found


def scored_merges(vocabulary: Vocabulary, tokens: list[str]) -> list[tuple[str, str]]:
    """All token pairs that merge to a token, by score. Runs of spaces, which SentencePiece matches
    before merging, come in id order."""
    ids = _ids(tokens)
    found: list[tuple[tuple[float, float], int, int, str, str]] = []
    merged = np.isin(vocabulary.types, (NORMAL, USER_DEFINED))
    runs = vocabulary.types == USER_DEFINED
    for number in np.flatnonzero(merged):
        token = tokens[number]
        if len(token) > MOST_PIECE:
            raise vocabulary.refuse(f"a token has {len(token)} characters, at most {MOST_PIECE}")
        order = (1.0, -float(number)) if runs[number] else (0.0, float(vocabulary.scores[number]))
        found += [(order, len(left), len(right), left, right) for left, right in _pairs(token, ids)]
    # Ties keep transformers' order.
    found.sort(key=lambda one: one[:3], reverse=True)
    return [(left, right) for *_, left, right in found]


def _pairs(token: str, ids: dict[str, int]) -> Iterator[tuple[str, str]]:
    halves = ((token[:at], token[at:]) for at in range(1, len(token)))
    known = [(left, right) for left, right in halves if left in ids and right in ids]
    yield from sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))


def spaced(vocabulary: Vocabulary) -> list[str]:
    """Tokens in SentencePiece's spelling of spaces; files store user-defined ones as plain
    spaces."""
    return [SPACE * len(one) if one and not one.strip(" ") else one for one in vocabulary.tokens]


def added_tokens(vocabulary: Vocabulary) -> list[tuple[str, bool]]:
    """Tokens matched before pre-tokenization, and whether each is special."""
    special = {(vocabulary.role(role) or "") for role in ("bos", "eos", "unk", "sep", "mask")}
    special |= {*vocabulary.with_type(CONTROL, UNKNOWN)}
    plain = [one for one in vocabulary.with_type(USER_DEFINED) if one.strip(" ")]
    both = [(one, True) for one in vocabulary.tokens if one in special]
    return both + [(one, False) for one in plain if one not in special]


def _ids(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _word_piece(token: str) -> str:
    """BERT's spelling: GGUF marks word starts, BERT word continuations."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[1:] if token.startswith(SPACE) else f"##{token}"


def _is_upper(token: str) -> bool:
    return not token.startswith("[") and token != token.lower()


def _set(found: Tokenizer, normal: Any, split: Any, decode: Any) -> None:
    """Set the parts around a model; None is none."""
    if normal is not None:
        found.normalizer = normal
    if split is not None:
        found.pre_tokenizer = split
    found.decoder = decode
