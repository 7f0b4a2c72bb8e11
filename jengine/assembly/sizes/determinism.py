"""Deterministic mode: by batch-invariant kernels or, without them, by running every token in one
shape.

In: the user's settings, the model's config and the devices. Out: whether one shape is needed.

The CPU kernels are batch-invariant: matmuls, norms and attention sum in one order, and so do the
reductions over rows of logits (`sampling/row_operations.py`) and of a router; what XLA computes
besides is elementwise. There `deterministic=True` only enforces it. On other devices every token
runs as a decode row of one shape.
"""

from __future__ import annotations

import logging

from jengine.assembly.settings.step_args import StepSettings
from jengine.config import ModelConfig
from jengine.models.registry import has_own_body
from jengine.quantization.cpu_codes import kernels_take
from jengine.runner.step.attention_backend import BATCH_INVARIANT, available_backend
from jengine.weight_formats import Quantization
from pallas_kernels.choice import SLOPED

logger = logging.getLogger(__name__)


def needs_one_segment(asked: StepSettings, config: ModelConfig, devices: int = 1) -> bool:
    """Whether deterministic mode has to run every token in one shape. `devices`: per replica."""
    if not asked.deterministic:
        return False
    why = batch_dependence(asked, config, devices)
    if why is not None:
        logger.info("deterministic=True runs every token in one shape, which is slower: %s.", why)
    return why is not None


def batch_dependence(asked: StepSettings, config: ModelConfig, devices: int) -> str | None:
    """Why a row's bits may depend on the rest of the batch; None if they do not."""
    backend, _ = available_backend(asked.attention_backend, config.groups)
    if backend not in BATCH_INVARIANT:
        return f"matmuls and attention run on {backend}, which rounds differently in each shape"
    if any(group.spec.shares_heads for group in config.groups):
        return "latent attention runs on XLA, which rounds differently in each shape"
    if config.has_slopes and backend not in SLOPED:
        return "attention with slopes runs on XLA, which rounds differently in each shape"
    if config.has_recurrent:
        return "recurrent layers compute prompts in chunks, which round otherwise than decodes"
    if devices > 1:
        return "the model is sharded, and XLA adds up what devices have of a sum"
    if config.quantization is not None and not in_kernels(asked, config.quantization):
        return "XLA multiplies by quantized weights, which rounds differently in each shape"
    if has_own_body(config):
        return f"{config.architecture} has a body of its own, whose operations are not known"
    return None


def in_kernels(asked: StepSettings, quantization: Quantization) -> bool:
    """Whether CPU kernels multiply all weights of these formats."""
    formats = [stored.weights for _, stored in quantization.groups]
    return asked.pack_weights is not False and all(
        kernels_take(one) and (one.group is None or one.group % 2 == 0) for one in formats
    )
