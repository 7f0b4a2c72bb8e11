"""Few-bit quantized models: their configs, and dequantized copies of weights in compiled steps."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jengine.bench.gpu_proof.cases import StepCase
from jengine.config import ModelConfig
from jengine.models.linear import Linear
from jengine.models.quantized import with_quantization
from jengine.models.reading.published import PUBLISHED
from jengine.models.registry import model_config
from jengine.quantization.on_load import QuantizedOnLoad
from jengine.quantization.unquantized import UNQUANTIZED
from jengine.weights.abstract import abstract_model

# What config.json says of quantized checkpoints.
QUANTIZED_FILES: dict[str, dict[str, Any]] = {
    "fp8 blocks": {
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    },
    "mxfp4": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head",
        ],
    },
}  # fmt: skip


def config_of(case: StepCase) -> ModelConfig:
    """The model's config, optionally cut to its first layers."""
    config = _whole(case)
    return replace(config, layers=config.layers[: case.layers]) if case.layers else config


def _whole(case: StepCase) -> ModelConfig:
    """The model with weights quantized as in its checkpoint, or at load."""
    if case.quantization in QUANTIZED_FILES:
        stored = {"quantization_config": QUANTIZED_FILES[case.quantization]}
        return model_config({**PUBLISHED[case.model], **stored})
    return with_quantization(model_config(PUBLISHED[case.model]), case.quantization or None)


def plain_weights(text: str, case: StepCase) -> int:
    """Arrays the size of a quantized weight that the program materialises dequantized.

    What a fusion has inside is in no memory, and begins with the fusion's own parameters.
    """
    if not case.quantization:
        return 0
    sizes = {
        math.prod(shape) // case.devices * (2 if kind == "uint8" else 1)
        for shape, kind in few_bits_shapes(config_of(case))
    }
    made = [
        line
        for computation in text.split("\n\n")
        if "fused_computation" not in computation.lstrip().partition("\n")[0]
        for line in computation.splitlines()
    ]
    found = [re.match(r"\s*(?:ROOT )?%\S+ = (?:bf16|f16|f32)\[([\d,]+)\]\S* (\w+)", line)
             for line in made]  # fmt: skip
    return sum(
        math.prod(map(int, one[1].split(","))) in sizes
        for one in found
        if one and one[2] not in ("parameter", "bitcast", "get-tuple-element")
    )


def few_bits_shapes(config: ModelConfig) -> set[tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of the quantized weights."""
    modules = (module for _, module in nnx.iter_modules(abstract_model(config)))
    specs = [
        module.scheme.quantized.prepared(module.shape, config.dtype)["weight"]
        if isinstance(module.scheme, QuantizedOnLoad)
        else module.declared_specs()["weight"]
        for module in modules
        if isinstance(module, Linear) and module.scheme != UNQUANTIZED
    ]
    return {(spec.shape, jnp.dtype(spec.dtype).name) for spec in specs}
