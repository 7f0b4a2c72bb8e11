"""Settings that depend on quantized weights, without an engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.sizes.determinism import batch_dependence
from jengine.counts import Counts
from jengine.metrics.cost import CostModel
from jengine.models.parameter import named_parameters
from jengine.models.quantized import with_quantization
from jengine.models.registry import model_config
from jengine.weight_formats import Quantization, StoredFormat, WeightFormat
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


def test_a_step_reads_fewer_bytes_of_quantized_weights() -> None:
    counts = Counts(steps=10, query_tokens=10)
    plain, small = (
        CostModel(config).of(counts).read for config in (PLAIN, with_quantization(PLAIN, "int4"))
    )
    head = 10 * 4 * PLAIN.vocab_size * PLAIN.hidden_size  # stays plain
    assert plain - head == 8 * (small - head) > 0


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
