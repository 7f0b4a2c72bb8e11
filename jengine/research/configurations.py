"""Compares configurations of the engine with each other: what a scheme, a dtype or a mesh costs.

In: one model, and engine settings by name. Out: how far each is from the first, its size and its
speed. All see the same tokens (teacher forcing), so that distributions can be compared.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import jengine
from jengine.api.llm import LLM
from jengine.config import ModelConfig
from jengine.errors import ConfigError
from jengine.research.engine_run import SETTINGS, run_prompt
from jengine.research.measure import logit_result, perplexity
from jengine.research.model_under_test import ModelUnderTest, OpenLLM, folder_under_test
from jengine.research.options import Options
from jengine.research.prompts import built_in, tokenized
from jengine.research.runs import Run
from jengine.research.scheme_results import SchemeComparison, SchemeResult
from jengine.runner.step.group_arrays import block_bytes, each_array
from jengine.sampling_params import SamplingParams

MOST_ROWS = 2
STEP_TOKENS = 512
TIMED_TOKENS = 96
TIMED_RUNS = 5


class Measured(NamedTuple):
    """One configuration's run, its weight and cache bytes, and its speed."""

    run: Run
    weight_bytes: int
    cache_bytes: float  # of one token
    speed: float | None  # tokens a second of one request


def compare_configurations(
    model: str,
    configurations: Mapping[str, Mapping[str, Any]],
    options: Options,
    *,
    timed: bool = False,
    open_llm: OpenLLM = LLM,
) -> SchemeComparison:
    """Compare each configuration with the first, which is the reference."""
    if len(configurations) < 2:
        raise ConfigError("give at least two configurations to compare.")
    prompts: list[list[int]] = []
    measured: dict[str, Measured] = {}
    for name, settings in configurations.items():
        options.note(f"Running jengine with {name} ...")
        subject = folder_under_test(model, settings, open_llm)
        prompts = prompts or prompts_of(subject, options)
        measured[name] = measure(subject, prompts, settings, timed=timed)
    truth, *_ = measured.values()
    return SchemeComparison(
        model=model,
        prompts=len(prompts),
        tokens=sum(map(len, prompts)),
        truth=next(iter(measured)),
        schemes=tuple(scheme_result(name, one, truth) for name, one in measured.items()),
        command=options.command,
        environment=environment(),
    )


def prompts_of(subject: ModelUnderTest, options: Options) -> list[list[int]]:
    """The prompts as token ids."""
    config, tokenizer = subject.config, subject.tokenizer
    encode = None if tokenizer is None else tokenizer.encode
    given = options.prompts or built_in(encode, config.vocab_size)
    return tokenized(given, encode, config.vocab_size, config.longest_context - 1)


def measure(
    subject: ModelUnderTest,
    prompts: Sequence[list[int]],
    settings: Mapping[str, Any],
    *,
    timed: bool,
) -> Measured:
    """Run one configuration. Its engine is gone before the next is made."""
    with subject.open(**sizes(subject.config, prompts)) as llm:
        run = [run_prompt(llm, ids, [], None, 1) for ids in prompts]
        weights, cache = weight_bytes(llm), cache_bytes(llm)
    gc.collect()
    return Measured(run, weights, cache, speed(subject, settings, prompts[0]) if timed else None)


def sizes(config: ModelConfig, prompts: Sequence[list[int]]) -> dict[str, Any]:
    """Settings of an engine for these prompts."""
    longest = min(max(map(len, prompts)) + 2, config.longest_context)
    return {
        **SETTINGS,
        "max_model_len": longest,
        "max_num_seqs": MOST_ROWS,
        "max_num_batched_tokens": min(longest + MOST_ROWS, STEP_TOKENS),
    }


def weight_bytes(llm: LLM) -> int:
    """Bytes of the step's parameters on all devices of this process."""
    leaves = llm.engine.loaded.leaves
    return sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards)


def cache_bytes(llm: LLM) -> float:
    """KV-cache bytes per token, over all layers."""
    cache, arrays = llm.engine.cache, llm.engine.loaded.state.caches
    return sum(
        block_bytes(group, cache.block_size, each_array(array)[0].dtype) / cache.block_size
        for group, array in zip(cache.groups, arrays, strict=True)
        if not group.spec.is_state
    )


def speed(subject: ModelUnderTest, settings: Mapping[str, Any], prompt: list[int]) -> float:
    """Tokens per second of one request, best of TIMED_RUNS, in a second engine: the comparison's
    returns all scores and is slower."""
    prompt = prompt[:32]
    longest = len(prompt) + TIMED_TOKENS + 1
    plain = {"max_num_seqs": 1, "max_model_len": longest, "enforce_eager": True, **settings}
    params = SamplingParams(temperature=0, max_tokens=TIMED_TOKENS, ignore_eos=True)
    with subject.open_plain(**plain) as llm:
        return max(tokens_per_second(lambda: llm.generate([prompt], params, use_tqdm=False))
                   for _ in range(TIMED_RUNS))  # fmt: skip


def tokens_per_second(generate: Callable[[], object]) -> float:
    begin = time.perf_counter()
    generate()
    return TIMED_TOKENS / (time.perf_counter() - begin)


def scheme_result(name: str, one: Measured, truth: Measured) -> SchemeResult:
    """One configuration against the truth."""
    result = logit_result(one.run, truth.run, [None] * len(one.run))
    return SchemeResult(
        name=name,
        weight_bytes=one.weight_bytes,
        cache_bytes_per_token=one.cache_bytes,
        tokens_per_second=one.speed,
        perplexity=perplexity(one.run),
        kl=tuple(float(value) for value in result.kl),
        agreement={count: float(share) for count, share in result.agreement.items()},
        given_difference=float(np.mean(result.given_difference)),
    )


def environment() -> dict[str, str]:
    """Versions and the device."""
    device = jax.devices()[0]
    return {
        "jengine": jengine.__version__,
        "jax": jax.__version__,
        "device": f"{device.platform} ({device.device_kind})",
    }
