"""Codes as GPUs hold them, through the whole engine: the tokens of XLA's path.

Triton's kernels run in Triton's interpreter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import nnx

import jengine
from jengine.models.linear import Linear
from jengine.quantization import gpu_fp8
from jengine.quantization.gpu_codes import GpuCodes
from jengine.quantization.gpu_fp8 import GpuFloat8
from jengine.quantization.scheme import WeightScheme
from tests.models.tiny_models import write_tiny_native
from tests.pallas_kernels.implementations import TRITON
from tests.weights import quantized_models
from tests.weights.quantized_models import LAYOUTS, Layout, write_quantized

SIZES = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}
PROMPTS = [[5, 6, 7, 8, 9] * 2, [11, 12, 13]]
GREEDY = jengine.SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True, "max_model_len": 48, "max_num_seqs": 2, "block_size": 8,
    "max_num_batched_tokens": 32, "enforce_eager": True, "dtype": "bfloat16",
    "num_gpu_blocks_override": 16, "show_progress": False,
    "compilation_config": {"prefill_tokens": [32], "variants": ["scored"]},
}  # fmt: skip
GROUP = 64
CASES: dict[str, str | Layout] = {
    "int4 rounded at load": "int4", "AWQ": LAYOUTS["AWQ"], "MXFP4": LAYOUTS["MXFP4"],
}  # fmt: skip


def written(folder: Path, layout: str | Layout) -> tuple[Path, dict[str, Any]]:
    """A model, and what the engine is told of its weights."""
    if isinstance(layout, str):
        return write_tiny_native(folder, "llama", **SIZES), {"quantization": layout}
    config = dict(layout.config)
    config |= {"group_size": GROUP} if "group_size" in config else {}
    return write_quantized(folder, "llama", layout._replace(config=config), **SIZES).quantized, {}


def schemes(llm: jengine.LLM) -> set[type[WeightScheme]]:
    """Of the weights of the layers in a step."""
    model = llm.engine.loaded.order.rebuild(llm.engine.loaded.leaves)
    modules = [module for _, module in nnx.iter_modules(model.layers)]
    return {type(module.scheme) for module in modules if isinstance(module, Linear)}


@pytest.mark.slow
@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("case", CASES)
def test_the_same_tokens_as_by_xla(
    case: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized_models, "GROUP", GROUP)
    folder, given = written(tmp_path, CASES[case])
    tokens, scores, parameters = [], [], []
    for attention in ("xla", backend):
        with jengine.LLM(folder, attention_backend=attention, **ENGINE, **given) as llm:
            assert (schemes(llm) == {GpuCodes}) == (attention == backend)
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            tokens.append([output.outputs[0].token_ids for output in outputs])
            scores.append(np.asarray(llm.compute_logprobs([PROMPTS[0]]))[0])
            parameters.append(llm.engine.loaded.stored_parameters())
    assert tokens[0] == tokens[1]
    # Kernels give inner results in bfloat16.
    assert np.abs(scores[0] - scores[1]).max() < 0.1 * scores[0].std()
    for name, value in parameters[0].items():
        ours, theirs = (np.asarray(one, np.float32) for one in (value, parameters[1][name]))
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_is_as_near_to_the_truth_as_by_xla(
    dtype: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 most scores are those of XLA. An inner result between two FP8 numbers, which sums
    in another order round apart, changes the rest: few in float32, most in bfloat16. This model's
    random weights multiply the difference, but the error stays the same."""
    monkeypatch.setattr(gpu_fp8, "knows_float8", lambda placement: True)
    folder = write_tiny_native(tmp_path, "llama", **SIZES)
    prompts = np.random.default_rng(0).integers(3, 97, (4, 30)).tolist()

    def scores(attention: str, dtype: str, **given: Any) -> np.ndarray:
        settings = {**ENGINE, "dtype": dtype, **given}
        with jengine.LLM(folder, attention_backend=attention, **settings) as llm:
            assert (schemes(llm) == {GpuFloat8}) == (attention == backend)
            return np.concatenate([np.asarray(one) for one in llm.compute_logprobs(prompts)])

    truth = scores("xla", "float32")
    by_xla, by_gpu = (scores(one, dtype, quantization="fp8") for one in ("xla", backend))
    if dtype == "float32":
        assert np.median(np.abs(by_gpu - by_xla)) < 1e-3
    costs = [float(np.sqrt(np.mean((one - truth) ** 2))) for one in (by_xla, by_gpu)]
    assert 0 < max(costs) < 0.4 * truth.std()
    assert max(costs) < 1.3 * min(costs)
    assert np.sqrt(np.mean((by_gpu - by_xla) ** 2)) < min(costs)
