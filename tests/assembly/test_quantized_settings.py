"""Settings that depend on quantized weights, without an engine."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.sizes.determinism import batch_dependence
from jengine.counts import Counts
from jengine.metrics.cost import CostModel
from jengine.models.parameter import named_parameters
from jengine.models.quantized import as_rounded, rounded_paths, with_quantization
from jengine.models.registry import model_config
from jengine.weight_formats import Quantization, StoredFormat, WeightFormat
from jengine.weights.abstract import abstract_model
from jengine.weights.dummy import dummy_model
from pallas_kernels.choice import cpu_problem
from tests.models.tiny_models import FAMILIES, tiny_settings

PLAIN = model_config({**tiny_settings("llama"), "architectures": [FAMILIES["llama"]]})


def stored(format: WeightFormat) -> Quantization:
    return Quantization(((("Linear",), StoredFormat("packed", format)),), ("lm_head",))


@pytest.mark.skipif(bool(cpu_problem()), reason="the CPU kernels do not run here")
def test_quantized_weights_have_the_same_bits_in_any_batch_where_kernels_multiply() -> None:
    args = EngineArgs("demo", attention_backend="cpu")
    for name in (None, "int8", "int4"):
        assert batch_dependence(args.groups.steps, with_quantization(PLAIN, name), 1) is None
    unpacked = EngineArgs("demo", attention_backend="cpu", pack_weights=False)
    odd = replace(PLAIN, quantization=stored(WeightFormat("int8", 3)))
    for settings, config in (
        (args, with_quantization(PLAIN, "fp8")),
        (unpacked, with_quantization(PLAIN, "int8")),
        (args, odd),
    ):
        why = batch_dependence(settings.groups.steps, config, 1)
        assert why is not None and "quantized" in why


@pytest.mark.parametrize("name", ["int8", "int4", "int8_per_channel_weight_only", "fp8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_reads_the_bytes_of_all_arrays_of_quantized_weights(name: str, dtype: str) -> None:
    """Of matrices whose inputs are of the hidden size, and a whole number of groups."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "head_dim": 16}
    settings = {**tiny_settings("llama"), "architectures": [FAMILIES["llama"]], "dtype": dtype}
    config = with_quantization(model_config({**settings, **sizes}), name)
    model = abstract_model(config)
    as_rounded(model)
    layers = [
        math.prod(leaf.shape) * leaf.dtype.itemsize
        for path, leaf in named_parameters(model)
        if path.rpartition(".")[0] in rounded_paths(model)
    ]
    head = np.dtype(config.dtype).itemsize * config.vocab_size * config.hidden_size
    assert CostModel(config).of(Counts(steps=1, query_tokens=1)).read == sum(layers) + head


def test_a_step_reads_a_rounded_head_in_bytes() -> None:
    alone, with_head = (
        CostModel(with_quantization(PLAIN, name)).of(Counts(steps=1, query_tokens=1)).read
        for name in ("int8", "int8_with_head")
    )
    assert alone - with_head == (4 - 1) * PLAIN.vocab_size * PLAIN.hidden_size


@pytest.mark.parametrize("format", [
    WeightFormat("int8"), WeightFormat("int4", 16, zeros=True), WeightFormat("fp8"),
    WeightFormat("int8", activations="int8", static=True),
])  # fmt: skip
def test_random_weights_of_a_quantized_model_are_of_usual_size(format: WeightFormat) -> None:
    config = replace(PLAIN, quantization=stored(format))
    model = dummy_model(config)
    found = dict(named_parameters(model))
    assert found["head.weight"].dtype == np.float32
    gate_up = model.layers[0].mlp.gate_up
    tensors = {name: getattr(gate_up, name)[...] for name in gate_up.tensor_names}
    weight = np.asarray(gate_up.scheme.dequantized(gate_up.shape, tensors))
    assert np.isfinite(weight).all()
    assert 0.3 / 3 < weight.std() < 0.3 * 3  # of initializer_range
