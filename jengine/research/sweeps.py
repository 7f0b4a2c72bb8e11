"""Compares the engine with itself: batched, chunked, decoded or cached, against plain scoring.

In: an engine, prompts and the peer's errors as the measure. Out: one result per way. None of these
ways may move a logit by more than the noise of the dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jengine.api.llm import LLM
from jengine.distributed.data_parallel import DataParallelCore
from jengine.engine.core import EngineCore
from jengine.executor.local import LocalExecutor
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import RequestOutput
from jengine.research.engine_run import decoded, finished, scored, teacher_forced
from jengine.research.metrics import centred, vector_errors
from jengine.research.results import SweepResult
from jengine.research.verdict import judge
from jengine.scheduler.scheduler import Scheduler

Logits = np.ndarray  # f32 [positions, vocab]

# Fewest tokens of a chunk; an engine may cut at whole tiles only.
SHORTEST_PIECE = 32


class LogitPair(NamedTuple):
    """Logits of the same positions computed in two ways."""

    plain: Logits
    other: Logits


class Yardstick(NamedTuple):
    """The yardstick of a sweep: what a difference of logits is judged by."""

    peer: np.ndarray  # relative errors of the peer's logits against the truth
    dtype: str
    outliers_count: bool


def run_sweeps(
    llm: LLM, prompts: Sequence[list[int]], new_tokens: int, measure: Yardstick
) -> list[SweepResult]:
    """Run every sweep that the prompts and the engine allow."""
    steps = max(new_tokens, 1)
    alone = [ask(llm, [ids], steps)[0] for ids in prompts]
    plain = [teacher_forced(output) for output in alone]
    results = []
    if len(prompts) > 1:
        together = ask(llm, prompts, steps)
        pairs = [LogitPair(a, teacher_forced(b)) for a, b in zip(plain, together, strict=True)]
        results.append(
            result("batch", f"one prompt alone or {len(prompts)} at once", pairs, measure)
        )
    piece = max(llm.engine.schedule.prefill_tile, SHORTEST_PIECE)
    longer = [number for number, ids in enumerate(prompts) if len(ids) > piece]
    # An engine of several processes has its scheduler in one of them only.
    if longer and isinstance(llm.engine.in_process.core, (EngineCore, DataParallelCore)):
        with short_pieces(llm, piece):
            pairs = [
                LogitPair(plain[number], teacher_forced(ask(llm, [prompts[number]], steps)[0]))
                for number in longer
            ]
        meaning = f"a prompt in one piece or in pieces of {piece} tokens"
        results.append(result("chunks", meaning, pairs, measure))
    pairs = [pair for output in alone for pair in decode_pair(llm, output)]
    meaning = "tokens generated one by one or scored as part of the prompt"
    if pairs:
        results.append(result("decode", meaning, pairs, measure))
    pairs = [pair for ids in prompts for pair in prefix_pair(llm, ids, steps)]
    if pairs:
        results.append(
            result("prefix hit", "a prompt computed or taken from the cache", pairs, measure)
        )
    return results


def ask(llm: LLM, prompts: Sequence[list[int]], steps: int) -> list[RequestOutput]:
    """Greedy answers with all scores."""
    outputs = llm.generate(list(prompts), scored(steps), use_tqdm=False)
    return [finished(output) for output in outputs]


def decode_pair(llm: LLM, output: RequestOutput) -> Iterator[LogitPair]:
    """The logits of generated tokens, and of the same tokens behind the prompt."""
    prompt, answer = output.prompt_token_ids, output.outputs[0].token_ids
    if len(answer) < 2 or len(prompt) + len(answer) >= llm.max_model_len:
        return
    (again,) = ask(llm, [[*prompt, *answer[:-1]]], 1)
    # The first generated token is sampled from the last prompt position in both cases.
    yield LogitPair(teacher_forced(again)[len(prompt) :], decoded(output)[1:])


def prefix_pair(llm: LLM, ids: list[int], steps: int) -> Iterator[LogitPair]:
    """The answer's logits without and with the prompt in the cache, where it can be there."""
    params = scored(steps).clone(prompt_logprobs=None)
    llm.reset_prefix_cache()
    first, second = (finished(llm.generate([ids], params, use_tqdm=False)[0]) for _ in range(2))
    same = first.outputs[0].token_ids == second.outputs[0].token_ids
    if second.num_cached_tokens > first.num_cached_tokens:
        count = None if same else same_steps(first, second)
        yield LogitPair(decoded(first)[:count], decoded(second)[:count])


def same_steps(first: RequestOutput, second: RequestOutput) -> int:
    """Length of the common prefix plus one: the step that first differs saw the same tokens."""
    pairs = zip(first.outputs[0].token_ids, second.outputs[0].token_ids, strict=True)
    return 1 + next(step for step, (a, b) in enumerate(pairs) if a != b)


@contextmanager
def short_pieces(llm: LLM, tokens: int) -> Iterator[None]:
    """Run with the same programs behind a scheduler that limits prefill chunks to `tokens`
    tokens."""
    engine = llm.engine
    client, usual = engine.in_process, engine.in_process.core
    # The other scheduler writes over what this one believes to be cached.
    llm.reset_prefix_cache()
    schedule = replace(engine.schedule, long_prefill_token_threshold=tokens)
    scheduler = Scheduler(schedule, CacheCoordinator(engine.cache), depth=0)
    other = EngineCore(scheduler, LocalExecutor(engine.runners[0]), 0)
    client.core = other
    try:
        yield
    finally:
        other.reset()
        client.core = usual


def result(name: str, meaning: str, pairs: Sequence[LogitPair], measure: Yardstick) -> SweepResult:
    """Distance between two ways of computing the same, judged by the peer's distance from the
    truth."""
    plain = np.concatenate([pair.plain for pair in pairs])
    other = np.concatenate([pair.other for pair in pairs])
    errors = vector_errors(centred(other), centred(plain), measure.dtype)
    equal = bool(np.array_equal(plain, other))
    # Two results that are each as noisy as the peer's are this much further apart.
    judged = judge(
        errors.relative,
        measure.peer * np.sqrt(2),
        measure.dtype,
        equal=equal,
        outliers_count=measure.outliers_count,
    )
    return SweepResult(
        name=name,
        meaning=meaning,
        positions=len(plain),
        relative=float(np.median(errors.relative)),
        max_abs=float(errors.max_abs.max()),
        top_1=float((plain.argmax(-1) == other.argmax(-1)).mean()),
        bit_equal=equal,
        ratios=judged.ratios,
        band=judged.band,
    )
