"""Throughput cost of LoRA: decode with many adapters in a batch, against the same without.

    python -m jengine.bench.adapters MODEL [--adapters 8] [--rank 8] [--rows 32] [--tokens 96]
        [--output-json FILE]

Linear layers and the embedding are adapted, by random matrices. Row i of a batch has adapter i
modulo their number. Both kinds of batches run in turns, in one engine: what else the machine does
meets both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from jengine.adapters import LoRARequest
from jengine.api.llm import LLM
from jengine.bench.frame import Benchmark
from jengine.lora.weights import LowRankWeight
from jengine.sampling_params import SamplingParams

PROMPT = 32  # tokens
SPREAD = 0.02  # of the matrices' entries


def drawn(weights: Mapping[str, LowRankWeight], rank: int, number: int) -> dict[str, np.ndarray]:
    """A random adapter for all of these weights."""
    draw = np.random.default_rng(number)
    found: dict[str, np.ndarray] = {}
    for path, low_rank in weights.items():
        inputs, outputs = low_rank.weight.matrix
        if low_rank.is_table:
            inputs, outputs = outputs, inputs
        found[f"{path}.a"] = draw.normal(0, SPREAD, (inputs, rank))
        found[f"{path}.b"] = draw.normal(0, SPREAD, (rank, outputs))
    return found


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure tokens per second with and without adapters."""
    compilation = {
        "decode_rows": [args.rows], "prefill_tokens": [1024], "variants": ["greedy"],
        "wait_for": "all",
    }  # fmt: skip
    llm = LLM(
        args.model, skip_tokenizer_init=True, show_progress=False, enable_lora=True,
        max_loras=args.adapters, max_lora_rank=args.rank, max_num_seqs=args.rows,
        max_model_len=PROMPT + args.tokens, max_num_batched_tokens=1024,
        enable_prefix_caching=False, compilation_config=compilation,
    )  # fmt: skip
    with llm:
        stacks = llm.engine.loaded.adapters
        assert stacks is not None, "the engine has adapters"
        loras = [LoRARequest(f"a{n}", n) for n in range(1, args.adapters + 1)]
        for lora in loras:
            llm.add_lora(lora, drawn(stacks.weights, args.rank, lora.lora_int_id))
        own = [loras[row % args.adapters] for row in range(args.rows)]
        plain, adapted = in_turn(llm, args, own)
        held = sum(leaf.nbytes for leaf in stacks.leaves)
    tokens = args.rows * args.tokens
    return {
        "adapters": args.adapters, "rank": args.rank, "rows": args.rows, "tokens": tokens,
        "stack_mb": round(held / 1e6, 2), "base_tokens_per_s": tokens / plain,
        "adapted_tokens_per_s": tokens / adapted, "ratio": plain / adapted,
    }  # fmt: skip


def in_turn(
    llm: LLM, args: argparse.Namespace, loras: Sequence[LoRARequest]
) -> tuple[float, float]:
    """Median seconds of (base, adapted) batches, run alternately."""
    params = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
    draw, vocab = np.random.default_rng(0), llm.engine.model.vocab_size
    prompts = draw.integers(3, vocab, (args.rows, PROMPT)).tolist()
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(args.rounds + 1):  # the first one is not counted
        for kept, own in zip(seconds, (None, loras), strict=True):
            began = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False, lora_request=own)
            if turn:
                kept.append(time.perf_counter() - began)
    return median(seconds[0]), median(seconds[1])


FLAGS = {"model": {"metavar": "MODEL"}, "--adapters": 8, "--rank": 8, "--rows": 32, "--tokens": 96,
         "--rounds": 5}  # fmt: skip
main = Benchmark("adapters", __doc__, FLAGS, run).main


if __name__ == "__main__":
    raise SystemExit(main())
