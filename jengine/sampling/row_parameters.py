"""One request's sampling parameters as fixed-shape numpy arrays, ready for its engine row.

In: token ids known so far, bias, allowed ids, stop ids, bad words. Out: Admission.
Must not know: jax, engine rows, what the device does with the arrays.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jengine.config import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, MAX_LOGPROB_IDS

# Bad words are matched against the row's last tokens.
LONGEST_HISTORY = MAX_BAD_WORD_TOKENS

# A mark is a count of generated tokens with two flags above it.
COUNT_BITS = (1 << 28) - 1
IN_PROMPT = 1 << 28
IS_STOP = 1 << 29


class Admission(NamedTuple):
    """One row of RowState (see row_state.py for the fields), without the row axis."""

    marks: np.ndarray  # i32[V]
    bias: np.ndarray  # f32[V]
    history: np.ndarray  # i32[history_length]
    bad_words: np.ndarray  # i32[1024]
    bad_word_of: np.ndarray  # i32[1024]
    bad_word_distance: np.ndarray  # i32[1024]
    mask: np.ndarray  # i32[V / 32]
    logprob_ids: np.ndarray  # i32[logprob_width]


def history_length(max_len: int) -> int:
    """Tokens of history kept per row, for sequences of at most `max_len`."""
    return min(max_len, LONGEST_HISTORY)


def mask_words(vocab: int) -> int:
    """32-bit words of a bitmask over the vocabulary."""
    return -(-vocab // 32)


def logprob_width(vocab: int) -> int:
    """Maximum number of distinct token ids whose log-probabilities a request may ask for."""
    return min(vocab, MAX_LOGPROB_IDS)


def row_bytes(vocab: int, max_len: int, masked_drafts: int = 0) -> int:
    """Bytes of one row of the sampler's state pool, including masks after each of `masked_drafts`
    drafts."""
    masks = (1 + masked_drafts) * mask_words(vocab)
    lists = history_length(max_len) + 3 * MAX_BAD_WORD_TOKENS + logprob_width(vocab)
    words = 2 * vocab + masks + lists
    return words * np.dtype(np.int32).itemsize


def seed_words(seed: int) -> np.ndarray:
    """A 64-bit seed as two words u32[2], high word first; negative seeds wrap."""
    return np.array([(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)


def pack_admission(
    known: Sequence[int] | np.ndarray,
    prompt_length: int,
    *,
    vocab: int,
    max_len: int,
    logit_bias: Mapping[int, float] | None = None,
    allowed: Sequence[int] | None = None,
    stop: Iterable[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
    logprob_ids: Sequence[int] = (),
) -> Admission:
    """Build everything the device keeps for one row.

    `known` is the prompt, plus the tokens generated before a preemption.
    """
    known = np.asarray(known, np.int32)
    if known.size > max_len or not 0 <= prompt_length <= known.size:
        raise ValueError(
            f"{known.size} known tokens with prompt_length={prompt_length}, expected "
            f"prompt_length <= known tokens <= max_len={max_len}"
        )
    return Admission(
        _marks(known, prompt_length, _checked("stop ids", stop, vocab), vocab),
        _bias(logit_bias or {}, allowed, vocab),
        _history(known, history_length(max_len)),
        *_flatten(bad_words, vocab),
        # All tokens, until a plan sets a grammar's mask.
        mask=np.full(mask_words(vocab), -1, np.int32),
        logprob_ids=_logprob_ids(logprob_ids, vocab),
    )


def _logprob_ids(ids: Sequence[int], vocab: int) -> np.ndarray:
    own = np.full(logprob_width(vocab), -1, np.int32)
    if len(ids) > len(own):
        raise ValueError(f"{len(ids)} ids to score, expected at most {len(own)}")
    own[: len(ids)] = _checked("ids to score", ids, vocab)
    return own


def _history(known: np.ndarray, length: int) -> np.ndarray:
    """The last `length` tokens as a ring buffer, each at its position modulo `length`."""
    history = np.full(length, -1, np.int32)
    positions = np.arange(max(known.size - length, 0), known.size)
    history[positions % length] = known[positions]
    return history


def _marks(known: np.ndarray, prompt_length: int, stop: np.ndarray, vocab: int) -> np.ndarray:
    # Placeholder ids of images may be outside the vocabulary.
    inside = (known >= 0) & (known < vocab)
    generated = np.arange(known.size) >= prompt_length
    marks = np.bincount(known[inside & generated], minlength=vocab).astype(np.int32)
    marks[known[inside & ~generated]] |= IN_PROMPT
    marks[stop] |= IS_STOP
    return marks


def _bias(logit_bias: Mapping[int, float], allowed: Sequence[int] | None, vocab: int) -> np.ndarray:
    bias = np.zeros(vocab, np.float32)
    values = np.fromiter(logit_bias.values(), np.float32, len(logit_bias))
    if not np.isfinite(values).all():
        raise ValueError(f"logit_bias holds {values[~np.isfinite(values)]}, expected finite values")
    bias[_checked("logit_bias", logit_bias, vocab)] = values
    if allowed is not None:
        keep = _checked("allowed ids", allowed, vocab)
        if not keep.size:
            raise ValueError("allowed ids are empty, expected at least one token or None")
        forbidden = np.ones(vocab, bool)
        forbidden[keep] = False
        bias[forbidden] = -np.inf
    return bias


def _flatten(words: Sequence[Sequence[int]], vocab: int) -> tuple[np.ndarray, ...]:
    total = sum(map(len, words))
    if len(words) > MAX_BAD_WORDS or total > MAX_BAD_WORD_TOKENS:
        raise ValueError(
            f"{len(words)} bad words with {total} tokens, expected at most "
            f"{MAX_BAD_WORDS} words and {MAX_BAD_WORD_TOKENS} tokens"
        )
    if not all(map(len, words)):
        raise ValueError("a bad word has no tokens, expected at least one token per word")
    tokens, word_of, distance = np.full((3, MAX_BAD_WORD_TOKENS), -1, np.int32)
    lengths = np.array([len(word) for word in words], np.int32)
    tokens[:total] = _checked("bad words", (token for word in words for token in word), vocab)
    word_of[:total] = np.repeat(np.arange(len(words)), lengths)
    distance[:total] = np.repeat(np.cumsum(lengths), lengths) - 1 - np.arange(total)
    return tokens, word_of, distance


def _checked(what: str, ids: Iterable[int], vocab: int) -> np.ndarray:
    array = np.fromiter(ids, np.int64)
    outside = array[(array < 0) | (array >= vocab)]
    if outside.size:
        raise ValueError(f"{what} hold {outside[:5].tolist()}, expected ids in [0, {vocab})")
    return array
