"""Array functions for training loops: scoring given tokens, and generating from arrays of tokens.

Rows run as ordinary requests, with the same steps and KV cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jengine.errors import RequestError
from jengine.outputs import RequestOutput, StepLogprobs
from jengine.sampling_params import SamplingParams
from sharding.jax_settings import engine_context

Answer = Callable[[list[list[int]], list[SamplingParams]], list[RequestOutput]]
Tokenize = Callable[[str], list[int]]


class GenerateResult(NamedTuple):
    """Answers as padded arrays."""

    # B: rows given times n; the n answers of a row are adjacent.
    tokens: jax.Array  # i32 [B, longest answer]; 0 beyond an answer's length
    lengths: jax.Array  # i32 [B]
    logprobs: jax.Array  # f32 [B, longest answer]; 0 beyond an answer's length


class Scores(NamedTuple):
    """Log-probabilities of given tokens, and of the likeliest ones at each position."""

    logprobs: jax.Array  # f32 [B, T]
    top_logprobs: jax.Array  # f32 [B, T, k]
    top_ids: jax.Array  # i32 [B, T, k]


def compute_logprobs(
    answer: Answer, tokenize: Tokenize, token_ids: Any, lengths: Any = None, top_k: int = 0
) -> jax.Array | Scores:
    """log p(token | preceding tokens) of whole sequences (teacher forcing), f32 [B, T].

    0 for a sequence's first token and for padding.
    """
    rows = as_rows(token_ids, lengths, tokenize)
    params = SamplingParams(
        temperature=0, max_tokens=1, prompt_logprobs=top_k, flat_logprobs=True, detokenize=False
    )
    outputs = answer(rows, [params] * len(rows))
    width = np.shape(token_ids)[1] if hasattr(token_ids, "ndim") else max(map(len, rows))
    values = np.zeros((len(rows), width, 1 + top_k), np.float32)
    ids = np.zeros((len(rows), width, 1 + top_k), np.int32)
    for row, output in enumerate(outputs):
        scores = finished(output).prompt_logprobs
        assert isinstance(scores, StepLogprobs)
        end = 1 + len(scores.rank)
        values[row, 1:end] = scores.values
        ids[row, 1:end] = scores.ids
    if not top_k:
        return jax.device_put(values[:, :, 0])
    return Scores(*jax.device_put((values[:, :, 0], values[:, :, 1:], ids[:, :, 1:])))


def generate_arrays(
    answer: Answer,
    tokenize: Tokenize,
    token_ids: Any,
    lengths: Any = None,
    *,
    key: Any = None,
    sampling_params: SamplingParams,
) -> GenerateResult:
    """Answer every row `sampling_params.n` times. With a key, answer i of the result samples with a
    seed derived from the key and i."""
    n = sampling_params.n
    rows = [row for row in as_rows(token_ids, lengths, tokenize) for _ in range(n)]
    seeds = row_seeds(key, len(rows))
    params = [
        sampling_params.clone(seed=seed, logprobs=0, flat_logprobs=True, n=1, detokenize=False)
        for seed in seeds
    ]
    outputs = [finished(output).outputs[0] for output in answer(rows, params)]
    counts = np.array([len(output.token_ids) for output in outputs], np.int32)
    tokens = np.zeros((len(rows), counts.max()), np.int32)
    logprobs = np.zeros(tokens.shape, np.float32)
    for row, output in enumerate(outputs):
        tokens[row, : counts[row]] = output.token_ids
        logprobs[row, : counts[row]] = output.logprobs_array
    return GenerateResult(*jax.device_put((tokens, counts, logprobs)))


def as_rows(token_ids: Any, lengths: Any, tokenize: Tokenize) -> list[list[int]]:
    """Rows of token ids: from lists, from an array [B, T] with lengths [B], or from texts."""
    if isinstance(token_ids, str):
        raise RequestError(
            f"tokens are the text {token_ids!r:.60}; expected rows. One text alone is written "
            "['...']."
        )
    if not hasattr(token_ids, "ndim"):
        if lengths is not None:
            raise RequestError(
                "lengths go with an array of tokens; a list of rows has its own. Leave them out."
            )
        if not isinstance(token_ids, Sequence) or isinstance(token_ids, bytes):
            raise RequestError(
                f"tokens are a {type(token_ids).__name__}; expected a list of rows of token ids, "
                "an integer array [B, T], or texts."
            )
        rows = [tokenize(row) if isinstance(row, str) else one_row(row) for row in token_ids]
    else:
        table = np.asarray(token_ids)
        if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer):
            raise RequestError(
                f"tokens have shape {table.shape} and type {table.dtype}; expected integers [B, T]."
            )
        counts = [table.shape[1]] * len(table) if lengths is None else np.asarray(lengths).tolist()
        if len(counts) != len(table) or any(not 0 < n <= table.shape[1] for n in counts):
            raise RequestError(
                f"lengths={counts}: expected one for each of {len(table)} rows, from 1 to "
                f"{table.shape[1]}."
            )
        rows = [row[:count].tolist() for row, count in zip(table, counts, strict=True)]
    if not rows:
        raise RequestError("there are no rows; give at least one.")
    return rows


def one_row(row: Any) -> list[int]:
    """A row's token ids as a list."""
    tokens = np.asarray(row)
    if tokens.ndim != 1 or not (len(tokens) and np.issubdtype(tokens.dtype, np.integer)):
        raise RequestError(
            f"a row of tokens is {row!r:.60}; expected a list of integers that is not empty. One "
            "row alone is written [[1, 2, 3]]."
        )
    return tokens.tolist()


def row_seeds(key: Any, count: int) -> Sequence[int | None]:
    """One 63-bit seed per row from a jax key; None each without one."""
    if key is None:
        return [None] * count
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise RequestError(f"key={key!r:.60}: expected a key such as jax.random.key(0).")
    if key.shape:
        raise RequestError(f"key has shape {key.shape}; expected one key, not an array of them.")
    with engine_context():
        words = np.asarray(jax.random.bits(key, (count, 2), jnp.uint32))
    return [(int(high) << 32 | int(low)) >> 1 for high, low in words]


def finished(output: RequestOutput) -> RequestOutput:
    """The output. Raises RequestError if its request was aborted or refused."""
    if output.error:
        raise RequestError(f"request {output.request_id}: {output.error}")
    return output
