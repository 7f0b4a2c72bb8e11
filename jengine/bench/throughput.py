"""Output tokens a second on a workload: a trace file, as peers read it too.

    python -m jengine.bench.throughput MODEL TRACE.jsonl --max-num-seqs 32 --max-model-len 1024

A trace has one JSON object a line: {"prompt_token_ids": [...], "max_tokens": n}. All requests are
greedy and ignore the end token, so the amount of work is fixed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import jax

from jengine import __version__
from jengine.engine.llm import LLM
from jengine.sampling_params import SamplingParams


def read_trace(path: Path) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts and their parameters."""
    items = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    params = [
        SamplingParams(
            temperature=0, max_tokens=item["max_tokens"], ignore_eos=True, detokenize=False
        )
        for item in items
    ]
    return [item["prompt_token_ids"] for item in items], params


def measure(
    llm: LLM, prompts: list[list[int]], params: list[SamplingParams], repeats: int
) -> tuple[list[float], int]:
    """Seconds of each run over the whole trace, and the tokens one run generates."""
    seconds, generated = [], 0
    for _ in range(repeats):
        llm.reset_prefix_cache()
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds.append(time.perf_counter() - began)
        generated = sum(len(output.outputs[0].token_ids) for output in outputs)
    return seconds, generated


def commit() -> str | None:
    """The commit that runs, where this is a checkout."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)  # noqa: S603
    return found.stdout.strip() or None


def report(args: argparse.Namespace, llm: LLM, started: float) -> dict[str, Any]:
    """Everything about the run."""
    prompts, params = read_trace(args.trace)
    seconds, generated = measure(llm, prompts, params, args.repeats)
    read, best = sum(map(len, prompts)), min(seconds)
    stats = llm.stats()
    return {
        "engine": "jengine",
        "version": __version__,
        "commit": commit(),
        "device": str(jax.devices()[0]),
        "processor": platform.machine(),
        "jax": jax.__version__,
        "dtype": llm.engine.model.dtype,
        "requests": len(prompts),
        "startup_s": round(started, 2),
        "seconds": [round(one, 3) for one in seconds],
        "generated": generated,
        "output_tok_s": round(generated / best, 1),
        "total_tok_s": round((generated + read) / best, 1),
        "requests_s": round(len(prompts) / best, 2),
        "preemptions": stats.preemptions,
        "prefix_hit_rate": round(stats.prefix_hits / max(stats.prefix_queries, 1), 3),
        "peak_rss_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "programs": llm.ledger.as_dicts(),
    }


def main() -> None:
    """Measure, print the lines that people look for, and JSON as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--no-prefix-caching", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    began = time.perf_counter()
    llm = LLM(
        args.model,
        skip_tokenizer_init=True,
        dtype=args.dtype,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=args.max_model_len,
        enable_prefix_caching=not args.no_prefix_caching,
        compilation_config={"variants": ["greedy"]},
    )
    result = report(args, llm, time.perf_counter() - began)
    print(llm.ledger)
    print(
        f"Throughput: {result['requests_s']:.2f} requests/s, {result['total_tok_s']:.2f} total "
        f"tokens/s, {result['output_tok_s']:.2f} output tokens/s"
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
