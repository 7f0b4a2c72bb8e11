"""Integers in the CPU kernels: packed and back unchanged, equal to XLA's matmuls, and an engine
whose numbers do not depend on what ran beside a request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.quantization.backends import fits, step_scheme
from jengine.quantization.cpu_codes import CpuCodes
from jengine.quantization.on_load import QuantizedOnLoad
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import Around, WeightShape
from jengine.weight_formats import WeightFormat
from jengine.weights.safetensors_io import load_model
from pallas_kernels.choice import cpu_problem
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.marks import slow
from tests.quantization.compiled import Compiled
from tests.quantization.test_quantized import (
    ACTIVATIONS,
    EXPERTS,
    FORMATS,
    SHAPES,
    random_tensors,
)
from tests.weights.quantized_models import LAYOUTS, write_quantized

problem = cpu_problem()
pytestmark = pytest.mark.skipif(bool(problem), reason=problem or "runs")

USUAL = ("int8 per output", "int4 with fine zeros")
INTEGERS = [
    *USUAL,
    *slow("int8 in groups", "int8 with zeros", "int4 per output", "int4 in groups"),
    *slow("int4 with zeros"),
]  # fmt: skip


def each_shape(names: list[str]) -> list[Any]:
    """Every shape in every format; those of the default run take turns with the usual formats."""
    cases = [(shape, one) for shape in names for one in FORMATS if one.startswith("int")]
    chosen = {(shape, USUAL[index % 2]) for index, shape in enumerate(names)}
    return [case if case in chosen else slow(case)[0] for case in cases]


def scheme_of(format: WeightFormat) -> tuple[Any, Any]:
    """The scheme of the kernels, and that of XLA."""
    quantized = QuantizedWeights(format, "float32")
    return Compiled(CpuCodes(quantized)), Compiled(quantized)


def packed_without_loss(
    scheme: Any, weight: WeightShape, tensors: Mapping[str, Any]
) -> dict[str, Any]:
    """A weight as the kernels take it: of the declared shapes, and the same when restored."""
    packed = scheme.prepare(weight, tensors)
    specs = scheme.prepared(weight, jnp.float32)
    assert {name: (one.shape, one.dtype) for name, one in packed.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in specs.items()
    }
    restored = scheme.restore(weight, packed)
    assert restored.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(restored[name], array, err_msg=name)
    return packed


ROUNDED = {
    "int8 of tokens": ACTIVATIONS["int8 of tokens"],
    "int8, one scale": ACTIVATIONS["int8, one scale"],
    "int4 and int8 of tokens": WeightFormat("int4", activations="int8"),
}


@pytest.mark.parametrize("format", ROUNDED)
@pytest.mark.parametrize("shape", [*SHAPES, "experts"])
def test_rounded_activations_meet_integers_as_in_xla(shape: str, format: str) -> None:
    weight = {**SHAPES, "experts": EXPERTS}[shape]
    scheme, by_xla = scheme_of(ROUNDED[format])
    tensors = random_tensors(weight, ROUNDED[format])
    packed = packed_without_loss(scheme, weight, tensors)
    if weight.groups is not None:  # XLA sums up floating-point numbers there
        x, sizes = random(6, 12), jnp.asarray([2, 0, 3], jnp.int32)
        found = scheme.multiply_groups(weight, x, packed, sizes, "silu")
        expected = by_xla.multiply_groups(weight, x, tensors, sizes, "silu")
        np.testing.assert_allclose(found[:5], expected[:5], rtol=1e-4, atol=1e-3)
        return
    x = random(3, 2, 12)
    found, expected = scheme.multiply(weight, x, packed), by_xla.multiply(weight, x, tensors)
    np.testing.assert_array_equal(found, expected)
    if shape == "plain":
        picked = np.asarray([4, 0, 4])
        for name, array in scheme.outputs_at(weight, picked, packed).items():
            own = np.asarray(tensors[name])[..., picked]
            np.testing.assert_array_equal(array, own, err_msg=name)


@pytest.mark.parametrize(("shape", "format"), each_shape([*SHAPES, "experts"]))
def test_packing_loses_nothing(shape: str, format: str) -> None:
    weight, (scheme, _) = {**SHAPES, "experts": EXPERTS}[shape], scheme_of(FORMATS[format])
    tensors = random_tensors(weight, FORMATS[format])
    packed_without_loss(scheme, weight, tensors)


@pytest.mark.parametrize(("shape", "format"), each_shape([*SHAPES]))
def test_a_step_computes_what_xla_does(shape: str, format: str) -> None:
    weight, (scheme, by_xla) = SHAPES[shape], scheme_of(FORMATS[format])
    tensors = random_tensors(weight, FORMATS[format])
    packed = scheme.prepare(weight, tensors)
    results = weight.outputs[1:] if weight.gated else weight.outputs
    x, bias, residual = random(3, 2, 12), random(*weight.outputs), random(3, 2, *results)
    around = Around(bias=bias, activation="silu", residual=residual)
    found = scheme.apply(weight, x, packed, around)
    expected = by_xla.apply(weight, x, tensors, around)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    alone = scheme.multiply(weight, x, packed)
    np.testing.assert_allclose(alone, by_xla.multiply(weight, x, tensors), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("format", INTEGERS)
@pytest.mark.parametrize("activation", [None, "silu"])
def test_each_row_meets_the_weight_of_its_expert(format: str, activation: str | None) -> None:
    (scheme, by_xla), tensors = scheme_of(FORMATS[format]), random_tensors(EXPERTS, FORMATS[format])
    x, sizes = random(6, 12), jnp.asarray([2, 0, 3], jnp.int32)
    packed = scheme.prepare(EXPERTS, tensors)
    found = scheme.multiply_groups(EXPERTS, x, packed, sizes, activation)
    expected = by_xla.multiply_groups(EXPERTS, x, tensors, sizes, activation)
    np.testing.assert_allclose(found[:5], expected[:5], rtol=1e-4, atol=1e-3)


def random(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape), jnp.float32)


def test_formats_that_the_kernels_lack_stay_with_xla() -> None:
    placement = Placement(one_device_mesh())
    lone = WeightShape((12,), (5,), (None,) * 2)
    for format, is_taken in (
        (WeightFormat("int4", 4), True),
        (WeightFormat("int8", activations="int8"), True),
        (WeightFormat("int8", 4, activations="int8"), False),
        (WeightFormat("int8", activations="fp8"), False),
        (WeightFormat("fp8", 4), False),
    ):
        for given in (QuantizedWeights(format, "bfloat16"), QuantizedOnLoad(format, "bfloat16")):
            chosen = step_scheme(given, "cpu", placement)
            assert chosen == (CpuCodes(given) if is_taken else given)
            assert step_scheme(given, "xla", placement) == given
    odd = CpuCodes(QuantizedWeights(WeightFormat("int8", 3), "bfloat16"))
    assert not fits(odd, lone) and fits(CpuCodes(QuantizedWeights(odd.format, "float32")), lone)


PROMPTS = [np.random.default_rng(n).integers(3, 2000, n).tolist() for n in (3, 20, 64, 130)]
WANTED = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)


def numbers(llm: jengine.LLM, prompts: list[list[int]]) -> list[Any]:
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], WANTED)
    return [
        [sorted((token, one.logprob) for token, one in step.items()) for step in found.logprobs]
        for [found] in (output.outputs for output in outputs)
    ]


@pytest.mark.slow
def test_an_answer_has_the_same_bits_alone_and_in_a_batch() -> None:
    with jengine.LLM(
        "demo", quantization="int4", deterministic=True, max_num_seqs=4, max_model_len=256,
        enforce_eager=True, show_progress=False, attention_backend="cpu",
    ) as llm:  # fmt: skip
        assert isinstance(llm.engine.loaded.order._form.module.layers[0].mlp.down.scheme, CpuCodes)
        alone = [one for prompt in PROMPTS for one in numbers(llm, [prompt])]
        llm.reset_prefix_cache()
        assert numbers(llm, PROMPTS[::-1])[::-1] == alone


@pytest.mark.slow
def test_an_answer_with_rounded_activations_has_the_same_bits_alone_and_in_a_batch(
    tmp_path: Path,
) -> None:
    folder = write_quantized(tmp_path, "llama", LAYOUTS["W8A8 int"]).quantized
    with jengine.LLM(
        folder, skip_tokenizer_init=True, deterministic=True, max_num_seqs=4, max_model_len=160,
        max_num_batched_tokens=48, enforce_eager=True, show_progress=False,
        num_gpu_blocks_override=64, attention_backend="cpu",
    ) as llm:  # fmt: skip
        assert isinstance(llm.engine.loaded.order._form.module.layers[0].mlp.down.scheme, CpuCodes)
        few = [[token % 64 for token in prompt] for prompt in PROMPTS]
        alone = [one for prompt in few for one in numbers(llm, [prompt])]
        llm.reset_prefix_cache()
        assert numbers(llm, few[::-1])[::-1] == alone


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["W4A16 group, zeros"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("GPTQ 4", "AWQ", "W8A16 channel")],
)
def test_published_layouts_in_the_kernels(name: str, tmp_path: Path) -> None:
    folders = write_quantized(tmp_path, "llama", LAYOUTS[name])
    found = []
    for folder in folders:
        with jengine.LLM(
            folder, skip_tokenizer_init=True, max_model_len=64, max_num_seqs=2,
            enforce_eager=True, num_gpu_blocks_override=16, show_progress=False,
            attention_backend="cpu",
        ) as llm:  # fmt: skip
            [made] = llm.generate(
                {"prompt_token_ids": [1, 5, 9, 33]},
                SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
            )
            found.append(list(made.outputs[0].token_ids))
            if folder == folders.quantized:
                stored, given = llm.engine.loaded.parameters(), load_model(folder)
                path = "layers.1.mlp.down"
                module = given.layers[1].mlp.down
                for tensor in module.tensor_names:
                    np.testing.assert_array_equal(
                        stored[f"{path}.{tensor}"], getattr(module, tensor)[...]
                    )
    assert found[0] == found[1]
