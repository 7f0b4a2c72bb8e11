"""Requests of every kind, and what their answers on several devices are compared with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jengine
from jengine import SamplingParams
from tests.api.engines import answers, random_prompts, rebuilt, tiny_engine
from tests.models.tiny_models import write_tiny_native

PROMPTS = random_prompts(1, 17, 60, 130, 200)
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.8, "seed": 7, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {5: 2.0}},
    {"temperature": 1.2, "seed": 9, "frequency_penalty": 0.7, "min_tokens": 4},
]
PARAMS = [SamplingParams(max_tokens=12, ignore_eos=True, logprobs=2, **kind) for kind in KINDS]
LONG = 131_072


def run(llm: jengine.LLM) -> list[Any]:
    outputs = llm.generate(PROMPTS, PARAMS)
    for output in outputs:
        assert output.outputs[0].finish_reason == "length"
    return answers(outputs)


def same_in_every_way(llm: jengine.LLM, expected: list[Any], few_blocks: int = 20) -> None:
    """From the prefix cache, in small chunks, in a cache that is too small for all at once."""
    assert run(llm) == expected
    assert run(llm) == expected
    assert llm.stats().prefix_hits > 0
    with rebuilt(llm, num_blocks=few_blocks, max_num_batched_tokens=64) as small:
        assert run(small) == expected
        assert small.stats().preemptions > 0


def same_beside(folder: Path, settings: dict[str, Any], split: dict[str, Any]) -> None:
    """An engine with these settings answers as on one device; the settings may have sizes too."""
    sizes = {name: 1 for name in settings if name.endswith("parallel_size")}
    with tiny_engine(folder, **{**settings, **sizes}) as one:
        expected = run(one)
    with tiny_engine(folder, **{**split, **settings}) as llm:
        assert run(llm) == expected
        assert run(llm) == expected


def same_after_131k_tokens(tmp_path: Path, engine: Callable[..., jengine.LLM]) -> None:
    """`engine(folder, devices, **settings)`, with one device and with all of them."""
    folder = write_tiny_native(
        tmp_path, "llama", max_position_embeddings=LONG, vocab_size=128, num_hidden_layers=1
    )
    prompt = np.random.default_rng(0).integers(3, 120, LONG - 16).tolist()
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
    settings = {
        "max_model_len": LONG, "max_num_seqs": 2, "max_num_batched_tokens": 4096,
        "compilation_config": {"decode_rows": [2], "prefill_tokens": [4096]},
        "num_gpu_blocks_override": LONG // 128 + 2,
    }  # fmt: skip
    found = []
    for devices in (1, jax.device_count()):
        with engine(folder, devices, **settings) as llm:
            found.append(llm.generate([prompt], params)[0].outputs[0])
    assert found[0].token_ids == found[1].token_ids
    np.testing.assert_allclose(
        *[[row[token].logprob for row, token in zip(one.logprobs, one.token_ids, strict=True)]
          for one in found],
        atol=1e-3,
    )  # fmt: skip
