"""Stage: end-to-end speed of a random-weight model through the engine.

Decoding is driven plan by plan (`jengine.bench.driver`); prompts and answers go through
`LLM.generate`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jengine.api.llm import LLM
from jengine.bench.driver import Driver, weight_bytes
from jengine.bench.gpu.cases import Sizes, sizes
from jengine.bench.gpu.part import StageResult, run_stage
from jengine.sampling_params import SamplingParams

Decode = tuple[int, int]  # rows, context


def measure(part: StageResult, args: argparse.Namespace) -> None:
    """Decode steps, then prefill, then generation."""
    chosen = sizes(dry_run=args.dry_run)
    devices = shards(chosen.models[args.model]) if args.tensor_parallel else 1
    if args.tensor_parallel and devices == 1:
        part.leave_out("tensor parallelism", "there is one device")
        return
    folder = write_config(args.part.parent / "models" / args.model, chosen.models[args.model])
    grid = decode_grid(chosen, few=args.few)
    began = time.perf_counter()
    with open_llm(folder, chosen, grid, devices, **compiling(args)) as llm:
        part.note(f"attention: {attention_in_use(llm)}")
        part.add(what="start", model=args.model, seconds=round(time.perf_counter() - began, 1),
                 programs=len(llm.ledger.entries), weights_gb=weight_bytes(llm) / 1e9)  # fmt: skip
        for entry in llm.ledger.entries.values():
            part.add(what="compile", model=args.model, case=str(entry.bucket),
                     seconds=round(entry.seconds, 2),
                     temporary_mb=round(entry.temp_bytes / 1e6, 1))  # fmt: skip
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
    """Pairs (rows, context), short contexts first."""
    grid = [(rows, context) for context in chosen.model_contexts for rows in chosen.model_rows]
    return [(rows, context) for rows, context in grid if context == grid[0][1]] if few else grid


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    """Write a model folder without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def shards(config: dict[str, Any]) -> int:
    """The largest power-of-two device count that divides the KV heads."""
    most = min(jax.device_count(), config["num_key_value_heads"])
    return 1 << most.bit_length() - 1


def compiling(args: argparse.Namespace) -> dict[str, Any]:
    """XLA compilation settings for a stage."""
    return {
        "capture_collectives": args.captured,
        "short_graphs": not args.long_graphs,
        "matmuls": args.matmuls,
    }


def open_llm(
    folder: Path, chosen: Sizes, grid: list[Decode], devices: int = 1, **compiling: Any
) -> LLM:
    """An engine that compiles only the programs measured here."""
    most = max(rows for rows, _ in grid)
    return LLM(
        folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        tensor_parallel_size=devices,
        max_model_len=chosen.max_model_len,
        max_num_seqs=most,
        max_num_batched_tokens=chosen.step_tokens[-1],
        show_progress=False,
        compilation_config={
            "variants": ["greedy"],
            "decode_rows": sorted({max(rows, 2) for rows, _ in grid}),
            "prefill_tokens": list(chosen.step_tokens),
            "wait_for": "all",
            **compiling,
        },
    )


def attention_in_use(llm: LLM) -> str:
    """The attention backend that the engine chose."""
    shapes = llm.engine.loaded.shapes
    return str(shapes.prompts or shapes.attention)


def random_prompts(llm: LLM, count: int, tokens: int) -> list[list[int]]:
    """Random prompts without common prefixes."""
    rng = np.random.default_rng(time.time_ns())
    return rng.integers(1, llm.engine.model.vocab_size, (count, tokens)).tolist()


def generated(llm: LLM, count: int, tokens: int, new: int) -> float:
    """Better of two runs' seconds, after an uncounted one."""
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
    """Prefill throughput, up to each request's first token."""
    seconds = generated(llm, count, tokens, 1)
    return {
        "rows": count, "context": tokens, "ms": round(seconds * 1e3, 2),
        "tok_s": round(count * tokens / seconds, 1),
    }  # fmt: skip


def answers(llm: LLM, rows: int, tokens: int, new: int) -> dict[str, Any]:
    """End-to-end generation throughput."""
    seconds = generated(llm, rows, tokens, new)
    return {
        "rows": rows, "context": tokens, "new_tokens": new, "ms": round(seconds * 1e3, 2),
        "tok_s": round(rows * new / seconds, 1),
    }  # fmt: skip


if __name__ == "__main__":
    run_stage(measure)
