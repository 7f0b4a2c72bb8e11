"""A head in int8: matmuls and rows of its table are those of the numbers that its values mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jengine import LLM, SamplingParams
from jengine.models.quantized import with_quantization
from jengine.models.reading.published import PUBLISHED
from jengine.models.registry import model_config
from jengine.quantization.backends import weight_scheme
from jengine.quantization.rounded_head import CpuRoundedHead, RoundedHead
from jengine.quantization.scheme import WeightShape
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.marks import slow
from tests.models.tiny_models import write_tiny_native
from tests.pallas_kernels.implementations import CPU
from tests.quantization.compiled import Compiled

ALONE = Placement(one_device_mesh())
TABLE = WeightShape((24,), (100,), ("vocab", "embed"), outputs_first=True)
HEAD = WeightShape((24,), (100,), ("embed", "vocab"))


@pytest.mark.parametrize("kernels", ["xla", CPU])
@pytest.mark.parametrize("dtype", ["bfloat16", *slow("float32")])
@pytest.mark.parametrize("weight", [TABLE, HEAD], ids=["tied", "apart"])
def test_results_are_those_of_the_rounded_weight(
    weight: WeightShape, dtype: str, kernels: str
) -> None:
    chosen = weight_scheme(RoundedHead(dtype), weight, kernels, ALONE)
    assert type(chosen) is (CpuRoundedHead if kernels == "cpu" else RoundedHead)
    scheme = Compiled(chosen)
    rng = np.random.default_rng(0)
    plain = jnp.asarray(rng.normal(size=weight.shape), dtype)
    prepared = scheme.prepare(weight, {"weight": plain})
    specs = scheme.prepared(weight, dtype)
    assert {name: (one.shape, one.dtype) for name, one in prepared.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in specs.items()
    }
    back = scheme.restore(weight, prepared)["weight"]
    assert back.dtype == plain.dtype
    error = np.abs(np.asarray(back, np.float32) - np.asarray(plain, np.float32))
    assert 0 < error.max() < 0.02 * float(jnp.abs(plain).max())
    # Rounding is done once: what comes back stands for itself.
    again = scheme.restore(weight, scheme.prepare(weight, {"weight": back}))["weight"]
    first, second = (np.asarray(one, np.float32) for one in (back, again))
    np.testing.assert_allclose(second, first, rtol=1e-2)

    rounded = Compiled(RoundedHead(dtype)).prepare(weight, {"weight": plain})
    wide = Compiled(RoundedHead("float32")).restore(weight, rounded)["weight"]
    table = np.asarray(wide, np.float64)
    table = table if weight.outputs_first else table.T
    x = jnp.asarray(rng.normal(size=(3, 24)), dtype)
    found = scheme.multiply(weight, x, prepared)
    expected = np.asarray(x, np.float64) @ table.T
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-5 * np.abs(expected).max())
    if weight.outputs_first:
        tokens = jnp.asarray([[0, 99], [31, 200]])  # the last is none of the table's
        rows = scheme.lookup(weight, tokens, prepared)
        wanted = table[np.asarray([[0, 99], [31, 99]])]
        np.testing.assert_allclose(np.asarray(rows), wanted, rtol=1e-6)


@pytest.mark.parametrize("name", ["int4_with_head", *slow("int8_with_head")])
def test_an_engine_with_its_head_in_int8(name: str, tmp_path: Path) -> None:
    """Its head is its table of embeddings."""
    model = write_tiny_native(
        tmp_path, "qwen3", dtype="bfloat16", hidden_size=64, num_hidden_layers=1,
        tie_word_embeddings=True,
    )  # fmt: skip
    settings: Any = {
        "max_num_seqs": 1, "max_model_len": 64, "enforce_eager": True, "skip_tokenizer_init": True,
        "compilation_config": {"variants": ["scored"]},
    }  # fmt: skip
    prompt = {"prompt_token_ids": list(range(5, 25))}
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    found, sizes = {}, {}
    for quantization in (name.removesuffix("_with_head"), name):
        with LLM(model, quantization=quantization, **settings) as llm:
            scores = llm.generate([prompt], params, use_tqdm=False)[0].prompt_logprobs
            found[quantization] = [
                one[token].logprob
                for token, one in zip(prompt["prompt_token_ids"][1:], scores[1:], strict=True)
            ]
            table = llm.engine.loaded.parameters()["embed.weight"]
            assert table.dtype == jnp.bfloat16
            sizes[quantization] = sum(leaf.nbytes for leaf in llm.engine.loaded.leaves)
    plain, rounded = found.values()
    before, after = sizes.values()
    assert before - after > 0.9 * table.size  # a byte less for each number, and some scales
    assert plain != rounded
    np.testing.assert_allclose(rounded, plain, atol=0.3)


def test_other_formats_have_no_such_name() -> None:
    config = model_config(PUBLISHED["qwen3-0.6b"])
    made = with_quantization(config, "int8_with_head").quantization
    assert made is not None and made.rounds_head and made.on_load
    with pytest.raises(ValueError, match="int8_with_head"):
        with_quantization(config, "fp8_with_head")
