"""Tiny engines for end-to-end tests: two programs each, compiled when first needed.

`rebuilt` puts another scheduler and cache manager before the same compiled steps, so that many
settings of the host half are tried without compiling anything again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import jengine
from jengine.engine.core import EngineCore
from jengine.executor.grammar_masks import GrammarMasks
from jengine.executor.local import LocalExecutor
from jengine.grammar.grammar_rows import GrammarRows
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.scheduler.decode_length import DecodeLength
from jengine.scheduler.gates import GrammarReady
from jengine.scheduler.scheduler import Scheduler

MAX_MODEL_LEN = 768
VOCAB = 97
WINDOW = 16
# For the demo model: two programs, the same in every file, so that each is compiled once.
SMALL_DEMO: dict[str, Any] = {
    "enforce_eager": True, "max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 256,
    "show_progress": False,
    "compilation_config": {"decode_rows": [4], "prefill_tokens": [256], "variants": ["scored"]},
}  # fmt: skip


def tiny_engine(folder: Path, variant: str = "scored", **settings: Any) -> jengine.LLM:
    """An engine of a tiny model whose steps are all of one variant and two buckets."""
    return jengine.LLM(folder, **tiny_engine_settings(variant, **settings))


def tiny_engine_settings(variant: str = "scored", **settings: Any) -> dict[str, Any]:
    """The arguments of `tiny_engine`, changed by these."""
    compilation = {"decode_rows": [8], "prefill_tokens": [256], "variants": [variant]}
    return {
        "skip_tokenizer_init": "tokenizer" not in settings,
        "enforce_eager": True,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "max_logprobs": -1,
        **settings,
        "compilation_config": {**compilation, **settings.get("compilation_config", {})},
    }


@contextmanager
def rebuilt(
    llm: jengine.LLM,
    *,
    num_blocks: int | None = None,
    prefix_caching: bool = True,
    overlap: bool = True,
    decode_length: Callable[[CacheCoordinator], DecodeLength] | None = None,
    **schedule: Any,
) -> Iterator[jengine.LLM]:
    """The engine with another schedule or a smaller cache, and as it was afterwards."""
    engine = llm.engine
    core = engine.in_process.core
    # Groups of recurrent layers have fewer units, each for a whole row.
    few = [group.spec.kind == "recurrent" for group in engine.cache.groups]
    blocks = tuple(
        min(num_blocks or most, most) if is_few else num_blocks or most
        for is_few, most in zip(few, engine.cache.num_blocks, strict=True)
    )
    assert all(map(int.__le__, blocks, engine.cache.num_blocks)), "more than the device holds"
    cache = replace(engine.cache, num_blocks=blocks, enable_prefix_caching=prefix_caching)
    stages = engine.placement.num_stages
    depth = stages - 1 + overlap
    coordinator = CacheCoordinator(cache)
    # Rows that a former scheduler used start again in the runner, so nothing of it is left.
    compiler = engine.here.grammars
    rows = GrammarRows(compiler, engine.model.vocab_size)
    executor = GrammarMasks(LocalExecutor(engine.runners[0]), rows)
    scheduler = Scheduler(
        replace(engine.schedule, **schedule),
        coordinator,
        depth=depth,
        spacing=stages,
        gates=[partial(GrammarReady, compiler.begin)],
        decode_length=decode_length and decode_length(coordinator),
        check_drafts=executor.checked_drafts,
    )
    engine.in_process.core = EngineCore(scheduler, executor, depth)
    try:
        yield llm
    finally:
        engine.in_process.core.reset()
        core.reset()
        engine.in_process.core = core


def is_idle(llm: jengine.LLM) -> bool:
    """Whether nothing is left in the engine."""
    stats = llm.stats()
    return stats.running + stats.waiting + len(llm.engine.session.open_answers) == 0


def random_prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Prompts of these lengths, without the special tokens 0 to 2."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, length).tolist() for length in lengths]


def answers(outputs: list[jengine.RequestOutput]) -> list[list[list[int]]]:
    """The token ids of every completion of every output."""
    return [[answer.token_ids for answer in output.outputs] for output in outputs]


def logprob_rows(tables: list[Any], columns: int) -> np.ndarray:
    """Log-probabilities as an array: a position a row, the chosen token and then the best ones."""
    rows = []
    for table in tables:
        values = [entry.logprob for entry in table.values()]
        best = sorted(values, reverse=True)[:columns]
        rows.append([values[0], *best])
    return np.asarray(rows, np.float64)
