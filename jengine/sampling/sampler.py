"""Samples one token at every sampled position of a step.

In: logits, row state and per-position parameters. Out: tokens, log-probabilities and the updated
state. A token is a pure function of its row's logits, parameters, seed and position. Must not know:
requests, stop conditions, which request a position belongs to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jengine.sampling.acceptance import Drafted, accepted
from jengine.sampling.adjust import adjust
from jengine.sampling.features import SamplingFeatures
from jengine.sampling.inputs import SamplingInput
from jengine.sampling.logprobs import Logprobs, gather_logprobs
from jengine.sampling.masks import allowed_logits
from jengine.sampling.processors import processed_logits
from jengine.sampling.row_operations import RowOperations, row_operations
from jengine.sampling.row_state import RowState, record
from pallas_kernels.token_sampling import DRAWN, sample_tokens
from pallas_kernels.token_sampling.xla import GREEDY_BELOW

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, UInt32

HIGHEST = np.finfo(np.float32).max


class SampleOutput(NamedTuple):
    """Result of sampling one step."""

    tokens: Array  # i32[S], -1 where the logits hold NaN or +inf, or are all -inf
    logprobs: Logprobs | None
    counts: Array | None = None  # bool[S] accepted slots; None: no drafts, so all are


def sample(
    logits: Float[Array, "slots vocab"],
    state: RowState | None,
    inputs: SamplingInput,
    *,
    features: SamplingFeatures,
    key_data: UInt32[Array, "2"],
    implementation: str | None = None,
    drafts: Drafted | None = None,
    changed: Float[Array, "slots vocab"] | None = None,
) -> tuple[SampleOutput, RowState | None]:
    """Sample one token per slot. Returns (output, next state).

    With `drafts`, a slot is accepted only if all drafts before it were sampled. `changed` are
    logits after host processors, which run before those of the step. `key_data` is the engine seed
    (`seed_words`). The state is updated if `features.adjust`, else returned as is. `implementation`
    names a kernel of `sample_tokens` or an entry of `row_operations`, which need unsharded logits;
    None is plain XLA, whose logits may be sharded over the vocabulary.
    """
    kept = _state_in_use(state, features)
    raw = logits.astype(jnp.float32)
    allowed, processed = raw, raw if changed is None else changed
    if kept is not None:
        allowed = allowed_logits(raw, kept, inputs, drafts)
        given = allowed
        if features.processors or changed is not None:  # before masks, which they cannot lift
            given = processed_logits(processed, kept, inputs, features.processors)
            given = allowed_logits(given, kept, inputs, drafts)
        with jax.named_scope("adjust"):
            # Skipped if there are only token masks: it reads several times as much memory.
            wanted = jnp.any((inputs.adjusted > 0) & (inputs.beyond_mask > 0))
            earlier = None if drafts is None else drafts.earlier
            processed = lax.cond(
                wanted, adjust, lambda logits, *_: logits, given, kept, inputs, earlier
            )
    rows = row_operations(implementation)
    if features.random and implementation in DRAWN and not _shows_filtered(features):
        with jax.named_scope("draw"):
            keys = rows.row_keys(key_data, inputs.seed, inputs.positions)
            tokens = sample_tokens(
                processed, keys, inputs.temperature, inputs.top_k, inputs.top_p, inputs.min_p,
                implementation=implementation,
            )  # fmt: skip
    else:
        tokens, processed = _choose(processed, inputs, features, key_data, rows)
    if kept is not None:
        tokens = jnp.where(rows.best_tokens(raw) < 0, -1, tokens)  # a mask can hide a NaN
    counts = None if drafts is None else accepted(tokens, drafts)
    if kept is not None:
        recorded = (tokens >= 0) & inputs.adjusted.astype(bool)
        recorded = recorded if counts is None else recorded & counts
        state = record(kept, inputs.adjusted - 1, inputs.positions, tokens, recorded)
    own = None
    if features.own_ids:
        own = _kept_ids(kept, inputs)
    logprobs = _logprobs(allowed, processed, tokens, features, rows, own)
    return SampleOutput(tokens, logprobs, counts), state


def _state_in_use(state: RowState | None, features: SamplingFeatures) -> RowState | None:
    if features.adjust and state is None:
        raise ValueError("features.adjust needs a RowState, got None: use empty_row_state")
    return state if features.adjust else None


def _is_random(inputs: SamplingInput) -> Array:
    return inputs.temperature >= GREEDY_BELOW


def _shows_filtered(features: SamplingFeatures) -> bool:
    """Whether log-probabilities of the processed logits are requested."""
    return features.logprobs is not None and features.logprobs_mode.startswith("processed")


def _choose(
    logits: Array,
    inputs: SamplingInput,
    features: SamplingFeatures,
    key_data: Array,
    rows: RowOperations,
) -> tuple[Array, Array]:
    """Return tokens, and the logits of the distribution they were drawn from."""
    with jax.named_scope("greedy"):
        tokens = rows.best_tokens(logits)
    if features.random:
        drawn, logits = _draw(logits, inputs, key_data, rows)
        tokens = jnp.where(_is_random(inputs) & (tokens >= 0), drawn, tokens)
    return tokens, logits


def _draw(
    logits: Array, inputs: SamplingInput, key_data: Array, rows: RowOperations
) -> tuple[Array, Array]:
    """Draw from the filtered distribution. Returns tokens and filtered logits; greedy rows are not
    filtered."""
    is_random = _is_random(inputs)
    with jax.named_scope("temperature"):
        logits = logits / jnp.where(is_random, inputs.temperature, 1.0)[:, None]
        logits = jnp.minimum(logits, HIGHEST)  # a quotient can overflow
    with jax.named_scope("filters"):
        cuts = (
            jnp.where(is_random, inputs.top_k, 0),
            jnp.where(is_random, inputs.top_p, 1.0),
            jnp.where(is_random, inputs.min_p, 0.0),
        )
        top_k, top_p, min_p = cuts
        wanted = jnp.any((min_p > 0) | (top_k > 0) | (top_p < 1))
        logits = lax.cond(wanted, rows.cut_logits, lambda logits, *off: logits, logits, *cuts)
    with jax.named_scope("draw"):
        keys = rows.row_keys(key_data, inputs.seed, inputs.positions)
        return rows.best_tokens(logits + rows.gumbel(keys, logits.shape[1])), logits


def _kept_ids(kept: RowState | None, inputs: SamplingInput) -> Array:
    if kept is None:
        raise ValueError("features.own_ids needs features.adjust: the ids are in the RowState")
    ids = kept.logprob_ids.at[inputs.adjusted - 1].get(mode="clip")  # [S, P]
    return jnp.where(inputs.adjusted[:, None] > 0, ids, -1)


def _logprobs(
    raw: Array,
    processed: Array,
    tokens: Array,
    features: SamplingFeatures,
    rows: RowOperations,
    own: Array | None,
) -> Logprobs | None:
    if features.logprobs is None:
        return None
    source = raw if features.logprobs_mode.startswith("raw") else processed
    parts = rows.softmax_parts if features.logprobs_mode.endswith("logprobs") else None
    return gather_logprobs(source, tokens, features.logprobs, parts, own)
