"""Latency of one batch from start to end, repeated."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from jengine.api.llm import LLM
from jengine.beam_search import BeamSearchParams
from jengine.bench.surroundings import surroundings
from jengine.sampling_params import SamplingParams

PERCENTILES = (10, 25, 50, 75, 90, 99)


def measure(
    llm: LLM,
    *,
    input_len: int,
    output_len: int,
    batch_size: int,
    warm_up: int,
    iterations: int,
    n: int = 1,
    beams: bool = False,
) -> dict[str, Any]:
    """Generate the same batch of random prompts `iterations` times, with `n` samples each, or by
    beam search of width `beams`."""
    rng = np.random.default_rng(0)
    shape = (batch_size, input_len)
    prompts = rng.integers(0, llm.engine.model.vocab_size, shape).tolist()
    temperature = 0.0 if n == 1 else 1.0
    sampled = SamplingParams(
        n=n, temperature=temperature, max_tokens=output_len, ignore_eos=True, detokenize=False
    )
    searched = BeamSearchParams(n, output_len, ignore_eos=True)
    seconds = []
    for number in range(warm_up + iterations):
        llm.reset_prefix_cache()
        began = time.perf_counter()
        if beams:
            llm.beam_search(prompts, searched, use_tqdm=False)
        else:
            llm.generate(prompts, sampled, use_tqdm=False)
        if number >= warm_up:
            seconds.append(time.perf_counter() - began)
    return {
        "bench": "latency",
        **surroundings(),
        "dtype": llm.engine.model.dtype,
        "input_len": input_len,
        "output_len": output_len,
        "batch_size": batch_size,
        "n": n,
        "use_beam_search": beams,
        "avg_latency": float(np.mean(seconds)),
        "latencies": [round(one, 5) for one in seconds],
        "percentiles": {str(p): float(np.percentile(seconds, p)) for p in PERCENTILES},
    }


def printed(result: dict[str, Any]) -> str:
    """Mean and percentiles."""
    lines = [f"Avg latency: {result['avg_latency']:.4f} seconds"]
    for percentile, value in result["percentiles"].items():
        lines.append(f"{percentile}% percentile latency: {value:.4f} seconds")
    return "\n".join(lines)
