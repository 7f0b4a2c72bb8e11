"""Stage: a whole model with random weights, through the engine.

Decoding is driven plan by plan over caches that claim to be full, so that contexts need not be
computed first; prompts and answers go through `LLM.generate`. A step's gap is what a loop that
reads every step's tokens takes longer than one that only queues steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jengine.bench.gpu.cases import Sizes, sizes
from jengine.bench.gpu.part import Part, run_stage
from jengine.engine.llm import LLM
from jengine.plan import NewBlocks, NewRow, Plan, RowSampling
from jengine.runner.runner import PendingStep, Runner
from jengine.sampling_params import SamplingParams

Decode = tuple[int, int]  # rows, context


def measure(part: Part, args: argparse.Namespace) -> None:
    """Decoding, then prompts, then answers."""
    chosen = sizes(dry_run=args.dry_run)
    folder = write_config(args.part.parent / "models" / args.model, chosen.models[args.model])
    grid = decode_grid(chosen, few=args.few)
    began = time.perf_counter()
    with open_llm(folder, chosen, grid) as llm:
        part.note(f"attention: {attention_in_use(llm)}")
        part.add(what="start", model=args.model, seconds=round(time.perf_counter() - began, 1),
                 programs=len(llm.ledger.entries), weights_gb=weight_bytes(llm) / 1e9)  # fmt: skip
        driver = Driver(llm)
        for rows, context in part.in_time(grid):
            if not driver.fits(rows, context, chosen.steps):
                part.leave_out(f"decode {rows} x {context}", "does not fit into the cache")
                continue
            with part.attempt("decode", f"{rows} x {context}"):
                line = driver.decode(rows, context, chosen.steps)
                part.add(what="decode", model=args.model, **line)
        if not args.few:
            for count, tokens in part.in_time(chosen.prompts):
                with part.attempt("prompts", f"{count} x {tokens}"):
                    part.add(what="prompts", model=args.model, **prompts(llm, count, tokens))
            for rows, tokens, new in part.in_time(chosen.answers):
                with part.attempt("answers", f"{rows} x {tokens}"):
                    part.add(what="answers", model=args.model, **answers(llm, rows, tokens, new))


def decode_grid(chosen: Sizes, *, few: bool) -> list[Decode]:
    """Rows and contexts, short contexts first."""
    grid = [(rows, context) for context in chosen.model_contexts for rows in chosen.model_rows]
    return [(rows, context) for rows, context in grid if context == grid[0][1]] if few else grid


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    """A model folder without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def open_llm(folder: Path, chosen: Sizes, grid: list[Decode]) -> LLM:
    """An engine that compiles no more than what is measured."""
    most = max(rows for rows, _ in grid)
    return LLM(
        folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=chosen.max_model_len,
        max_num_seqs=most,
        max_num_batched_tokens=chosen.step_tokens[-1],
        show_progress=False,
        compilation_config={
            "variants": ["greedy"],
            "decode_rows": sorted({max(rows, 2) for rows, _ in grid}),
            "prefill_tokens": list(chosen.step_tokens),
        },
    )


def attention_in_use(llm: LLM) -> str:
    """The implementation of the paged operations."""
    return str(llm.engine.runner.shapes.attention)


def weight_bytes(llm: LLM) -> int:
    """Of all parameters."""
    return sum(leaf.nbytes for leaf in llm.engine.runner.leaves)


def read_bytes(llm: LLM) -> int:
    """Of the parameters that a step reads: of an embedding that is not the output's, a few rows."""
    model = llm.engine.model
    if model.tie_embeddings:
        return weight_bytes(llm)
    size = llm.engine.runner.leaves[0].dtype.itemsize
    return weight_bytes(llm) - model.vocab_size * model.hidden_size * size


class Driver:
    """Hands plans to an engine's runner that say what they like about the past."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.runner: Runner = llm.engine.runner
        self.block_size = llm.engine.cache.block_size
        self.blocks = llm.engine.cache.num_blocks

    def fits(self, rows: int, context: int, steps: int) -> bool:
        """Whether rows of this length have blocks of their own and are not too long."""
        longest = self.llm.engine.schedule.max_model_len
        pages = rows * self.pages(context, steps)
        return context <= longest and all(pages < blocks for blocks in self.blocks)

    def pages(self, context: int, steps: int) -> int:
        """Blocks of a row."""
        longest = min(context + 3 * steps, self.llm.engine.schedule.max_model_len)
        return -(-longest // self.block_size)

    def decode(self, rows: int, context: int, steps: int) -> dict[str, Any]:
        """Milliseconds of a step: queued one after the other, and read one by one."""
        plans = self.plans(rows, context, steps)
        first = next(plans)
        self.runner.submit(first).result()
        submitting: list[float] = []
        began = time.perf_counter()
        for _ in range(steps):
            at = time.perf_counter()
            last = self.runner.submit(next(plans))
            submitting.append(time.perf_counter() - at)
        last.result()
        queued = (time.perf_counter() - began) / steps
        reading = self.read_one_by_one(plans, steps)
        moved = read_bytes(self.llm) + self.cache_bytes(rows, context)
        return {
            "rows": rows,
            "context": context,
            "queued_ms": round(queued * 1e3, 3),
            "reading_ms": round(reading * 1e3, 3),
            "gap_ms": round((reading - queued) * 1e3, 3),
            "submit_ms": round(statistics.median(submitting) * 1e3, 3),
            "tok_s": round(rows / reading, 1),
            "gb_s": round(moved / queued / 1e9, 1),
        }

    def read_one_by_one(self, plans: Iterator[Plan], steps: int) -> float:
        """Seconds of a step as the engine runs them: one is queued while another is read."""
        before: PendingStep = self.runner.submit(next(plans))
        began = time.perf_counter()
        for _ in range(steps - 1):
            queued = self.runner.submit(next(plans))
            before.result()
            before = queued
        before.result()
        return (time.perf_counter() - began) / steps

    def plans(self, rows: int, context: int, steps: int) -> Iterator[Plan]:
        """Decode steps of rows whose blocks lie in random order. Positions stop at the longest
        length that the engine takes."""
        everyone, pages = list(range(rows)), self.pages(context, steps)
        longest = self.llm.engine.schedule.max_model_len
        rng = np.random.default_rng(0)
        new_rows = [
            NewRow(row, [1] * (context - 1), context - 1, RowSampling()) for row in everyone
        ]
        new_blocks = []
        for group, blocks in enumerate(self.blocks):
            order = 1 + rng.permutation(blocks - 1)[: rows * pages].reshape(rows, pages)
            new_blocks += [NewBlocks(row, group, 0, order[row].tolist()) for row in everyone]
        for step in range(3 * steps):
            start = min(context - 1 + step, longest - 1)
            yield Plan(
                step, everyone, [start] * rows, [1] * rows, [True] * rows, rows,
                new_rows if step == 0 else [], new_blocks if step == 0 else [],
            )  # fmt: skip

    def cache_bytes(self, rows: int, context: int) -> int:
        """Keys and values that a step reads."""
        caches = self.runner.state.caches
        per_token = [cache.nbytes // (cache.shape[2] * cache.shape[3]) for cache in caches]
        return rows * context * sum(per_token)


def random_prompts(llm: LLM, count: int, tokens: int) -> list[list[int]]:
    """Token ids that no earlier prompt shares."""
    rng = np.random.default_rng(time.time_ns())
    return rng.integers(1, llm.engine.model.vocab_size, (count, tokens)).tolist()


def generated(llm: LLM, count: int, tokens: int, new: int) -> float:
    """Seconds of the better of two runs, after one that does not count."""
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
    seconds = []
    for _ in range(3):
        given = random_prompts(llm, count, tokens)
        began = time.perf_counter()
        outputs = llm.generate(given, params, use_tqdm=False)
        seconds.append(time.perf_counter() - began)
        assert all(len(output.outputs[0].token_ids) == new for output in outputs)
    return min(seconds[1:])


def prompts(llm: LLM, count: int, tokens: int) -> dict[str, Any]:
    """Reading prompts, up to the first token of each."""
    seconds = generated(llm, count, tokens, 1)
    return {
        "rows": count, "context": tokens, "ms": round(seconds * 1e3, 2),
        "tok_s": round(count * tokens / seconds, 1),
    }  # fmt: skip


def answers(llm: LLM, rows: int, tokens: int, new: int) -> dict[str, Any]:
    """Prompts and answers, everything included."""
    seconds = generated(llm, rows, tokens, new)
    return {
        "rows": rows, "context": tokens, "new_tokens": new, "ms": round(seconds * 1e3, 2),
        "tok_s": round(rows * new / seconds, 1),
    }  # fmt: skip


if __name__ == "__main__":
    run_stage(measure)
