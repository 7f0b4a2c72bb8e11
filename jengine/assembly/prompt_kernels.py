"""Lets `attention_backend="auto"` choose FlashAttention-4 kernels for prefill.

In: the user's settings and the model's config. Out: the same, with backend "fa4" if its kernels
support some layer on this device. Suitable bucket sizes follow from the name.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import jax
import jax.numpy as jnp

from jengine.assembly.settings.groups import Groups
from jengine.config import AttentionConfig, ModelConfig
from jengine.runner.step.attention_backend import BASES, CODES, available_backend, heads_of
from pallas_kernels.choice import fa4_unchosen, too_large
from pallas_kernels.fa4.rules import BULK_BLOCK, PrefillCall, missing, refused, unchosen

logger = logging.getLogger(__name__)


def with_prompt_kernels(asked: Groups, config: ModelConfig) -> Groups:
    """Replace "auto" by "fa4" if its kernels support some layer here; other settings are
    unchanged."""
    heads = served_heads(asked, config)
    if not heads or missing() or available_backend("auto", config.groups)[0] != BASES["fa4"]:
        return asked
    if problem := fa4_unchosen(jax.default_backend(), heads):
        logger.info("Prompts do not run on FlashAttention-4's kernels: %s", problem)
        return asked
    return named(asked)


def on_paper(asked: Groups, config: ModelConfig, capability: int) -> Groups:
    """`with_prompt_kernels` for a device of this compute capability (90 for 9.0), which may be
    absent, with the packages installed here."""
    runs = served_heads(asked, config) and not too_large(heads_of(config.groups))
    return named(asked) if runs and unchosen(capability) is None else asked


def named(asked: Groups) -> Groups:
    return replace(asked, steps=replace(asked.steps, attention_backend="fa4"))


def served_heads(asked: Groups, config: ModelConfig) -> set[int]:
    """Head sizes of layers that the kernels support; empty unless the backend is "auto"."""
    # Deterministic mode on GPUs runs prefill in the shape of decode.
    if asked.steps.attention_backend != "auto" or asked.steps.deterministic:
        return set()
    codes = asked.cache.cache_codes
    dtype = jnp.dtype(config.dtype) if codes is None else CODES[codes]
    block_size = asked.cache.block_size or BULK_BLOCK
    return {
        mixer.head_dim
        for layer in config.layers
        for mixer in layer.mixers
        if isinstance(mixer, AttentionConfig)
        and not runs_elsewhere(mixer)
        and refused(PrefillCall(dtype, mixer.head_dim, block_size, mixer.soft_cap, has_ends=False))
        is None
    }


def runs_elsewhere(mixer: AttentionConfig) -> bool:
    """Whether a layer never calls these kernels."""
    return bool(mixer.alibi or mixer.distance_bias or mixer.bidirectional)
