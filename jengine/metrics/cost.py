"""Estimates of the FLOPs and bytes of steps.

In: a model's shape, and a core's counts. Out: cumulative FLOPs and bytes read and written, whose
rates over the device's peak are its utilisation. Only matmuls, attention, weights and the KV cache
are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from jengine.config import CacheSpec, ExpertsConfig, LayerConfig, ModelConfig
from jengine.counts import Counts
from jengine.weight_formats import WeightFormat

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}


@dataclass(frozen=True)
class StepCost:
    """Cumulative FLOPs and bytes of all steps, per device."""

    operations: float
    read: float
    written: float


@dataclass(frozen=True)
class CostModel:
    """Per-device cost of a model whose layers are split evenly over the devices."""

    config: ModelConfig
    devices: int = 1
    # Whether the KV cache holds 1-byte codes, with a 2-byte scale per head and token.
    has_codes: bool = False

    def of(self, counts: Counts) -> StepCost:
        config, size = self.config, ITEM_BYTES.get(self.config.dtype, 4)
        weight_size = self.weight_size
        per_step = counts.query_tokens / counts.steps if counts.steps else 0.0
        logits = config.vocab_size * config.hidden_size
        operations = 2.0 * logits * counts.generation_tokens
        # Scales of an int8 LM head, one per vocabulary entry, are not counted.
        head = 1 if config.quantization is not None and config.quantization.rounds_head else size
        read, written = float(head * logits * counts.steps), 0.0
        for layer in config.layers:
            operations += 2 * active_weights(layer, config.hidden_size) * counts.query_tokens
            weights = read_weights(layer, config.hidden_size, per_step)
            read += weight_size * weights * counts.steps
            for mixer in layer.mixers:
                # Sliding window: assumes that contexts are longer than the window.
                most = counts.query_tokens * mixer.window if mixer.window else None
                operations += mixer.operations * within(counts.attended_tokens, most)
                kept = kept_bytes(mixer.cache, size, has_codes=self.has_codes)
                read += kept * within(counts.loaded_tokens, most)
                written += kept * counts.query_tokens
        return StepCost(operations / self.devices, read / self.devices, written / self.devices)

    @property
    def weight_size(self) -> float:
        """Mean bytes per weight of the layers as loaded, scales and zero points included (a
        backend's kernels may store these in other dtypes). A scale without groups counts as shared
        by `hidden_size` weights."""
        config = self.config
        if config.quantization is None:
            return ITEM_BYTES.get(config.dtype, 4)
        groups = config.quantization.groups
        sizes = [len(targets) * self._size_in(stored.weights) for targets, stored in groups]
        return sum(sizes) / sum(len(targets) for targets, _ in groups)

    def _size_in(self, format: WeightFormat) -> float:
        """Bytes per weight in this format."""
        hidden = self.config.hidden_size
        shared = sum(
            ITEM_BYTES[dtype] / (format.shared_by(name) or hidden)
            for name, dtype in format.shared_dtypes(self.config.dtype).items()
        )
        bits = format.bits if format.blocks is None else format.blocks.codes.bits
        return bits / 8 + shared


def kept_bytes(spec: CacheSpec, size: int, *, has_codes: bool) -> int:
    """KV-cache bytes per token of a layer; `size`: bytes of a number."""
    head = spec.head_dim + 2 if has_codes else spec.head_dim * size
    # Recurrent layers read and write their whole float32 state per token.
    return 4 * spec.state_size or spec.vectors * spec.kv_heads * head


def within(count: int, most: int | None) -> int:
    """min(count, most); `count` where `most` is None."""
    return count if most is None else min(count, most)


def matmuls(layer: LayerConfig) -> int:
    """Number of matmuls in a feed-forward block."""
    gated = isinstance(layer.ffn, ExpertsConfig) or layer.ffn.gated
    return 3 if gated else 2


def active_weights(layer: LayerConfig, hidden: int) -> int:
    """Weight elements that one token is multiplied with in a layer."""
    return layer.mixer.weights(hidden) + matmuls(layer) * hidden * layer.ffn.active_size


def read_weights(layer: LayerConfig, hidden: int, tokens: float) -> float:
    """Weight elements of a layer that a step reads; of experts, only those expected to be
    picked."""
    ffn = layer.ffn
    if not isinstance(ffn, ExpertsConfig):
        return active_weights(layer, hidden)
    touched = 1 - (1 - ffn.experts_per_token / ffn.num_experts) ** tokens
    experts = matmuls(layer) * hidden * ffn.intermediate_size * ffn.num_experts
    shared = matmuls(layer) * hidden * ffn.shared_size
    return layer.mixer.weights(hidden) + touched * experts + shared
