"""Stage: FlashAttention-4's kernels for prompts: right, fast, and in an engine.

No interpreter runs these kernels, so this is where their numbers are checked: against XLA's
attention on this device, for every kind of layer; then their speed beside Triton's; then an
engine's answers beside one with Triton alone. A dry run puts XLA in their place.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from jengine.api.llm import LLM
from jengine.bench.attention_shapes import fa4_shapes
from jengine.bench.gpu.cases import Sizes, sizes
from jengine.bench.gpu.features import Answers, answers
from jengine.bench.gpu.kernels import rates, time_attention
from jengine.bench.gpu.models import write_config
from jengine.bench.gpu.part import StageResult, run_stage
from jengine.sampling_params import SamplingParams
from pallas_kernels.fa4.rules import BULK_BLOCK, missing
from pallas_kernels.fa4.trial import TOLERANCES, Trial, errors, first_difference

COMPILED = [
    Trial(one.group * one.kv_heads, one.kv_heads, one.head_dim, one.block_size, one.window, None,
          one.sinks, one.dtype)
    for one in fa4_shapes(BULK_BLOCK)
]  # fmt: skip
FIRST = COMPILED[0]
# What is compiled without a device, windows within its short rows, and what is left to Triton.
TRIALS = (
    *COMPILED,
    *(FIRST._replace(head_dim=size, heads=7 * FIRST.kv_heads) for size in (64, 96)),
    *(FIRST._replace(window=window) for window in (100, 300)),
    FIRST._replace(head_dim=64, heads=8 * FIRST.kv_heads, has_sinks=True),
    FIRST._replace(scale=0.2, dtype="float16"),
    *(FIRST._replace(head_dim=size) for size in (80, 256)),
    *(FIRST._replace(block_size=size) for size in (16, 64)),
)
# Of log-probabilities in bfloat16, where answers are the same or begin to differ.
TOLERANCE = 0.05
# Chunks that are long enough for the kernels, and short ones beside them.
LENGTHS = (40, 256, 300, 1000, 2500)
SHARED = 300  # tokens that two more prompts begin with


def measure(part: StageResult, args: argparse.Namespace) -> None:
    """Lines of errors, rates, and answers."""
    chosen = sizes(dry_run=args.dry_run)
    kernels, backends = "fa4", ("fa4", "triton")
    if args.dry_run:
        kernels, backends = "xla", ("cpu", "xla")
    elif problem := missing():
        part.leave_out("FlashAttention-4's kernels", problem)
        return
    for trial in part.in_time(TRIALS[:: 10 if args.dry_run else 1], 0.5):
        with part.attempt("prompts", trial):
            part.add(what="prompts", case=str(trial), **compared(trial, kernels))
    for case in part.in_time([case for case in chosen.prefill if not case.codes], 0.5):
        for name, block_size in ((kernels, BULK_BLOCK), (backends[1], case.block_size)):
            with part.attempt(f"prefill attention by {name}", case):
                took = time_attention(replace(case, block_size=block_size), chosen, name)
                part.add(
                    what="prefill attention", case=str(case), implementation=name,
                    block_size=block_size, **rates(took, operations=case.operations),
                )  # fmt: skip
    with part.attempt("engine", args.model):
        part.add(what="engine", case=args.model, **engines(part, chosen, args, backends))


def compared(trial: Trial, kernels: str) -> dict[str, Any]:
    """Errors of one kind of layer, and which kernels it has."""
    found, tolerance = errors(trial, kernels), TOLERANCES[trial.dtype]
    return {
        "implementation": kernels if trial.rule is None else f"triton: {trial.rule}",
        "error": found["outputs"], "tolerance": tolerance, "lse_error": found["log-sum-exps"],
        "right": first_difference(found, tolerance) is None,
    }  # fmt: skip


def engines(
    part: StageResult, chosen: Sizes, args: argparse.Namespace, backends: tuple[str, str]
) -> dict[str, Any]:
    """How far the answers of two engines are from each other, and whether the first had its
    kernels until the end."""
    config = chosen.models[args.model]
    folder = write_config(args.part.parent / "models" / args.model, config)
    longest = chosen.max_model_len or 4096
    prompts = made_up(config["vocab_size"], longest // 2)
    params = SamplingParams(
        temperature=0, max_tokens=4 if args.dry_run else 16, logprobs=1, ignore_eos=True,
        detokenize=False,
    )  # fmt: skip
    found, used = [], []
    for backend in backends:
        with LLM(
            folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=longest,
            max_num_seqs=8, max_num_batched_tokens=longest, show_progress=False,
            attention_backend=backend,
            compilation_config={"variants": ["full"], "decode_rows": [8],
                                "prefill_tokens": [longest]},
        ) as llm:  # fmt: skip
            used.append(llm.engine.loaded.shapes.prompts)
            found.append(answers(llm, params, prompts=prompts))
    error = apart(*found)
    has_kernels = args.dry_run or used[0] == "fa4"
    return {
        "error": error, "tolerance": TOLERANCE, "implementation": used[0] or backends[0],
        "right": error < TOLERANCE and has_kernels,
    }  # fmt: skip


def made_up(vocab: int, longest: int) -> list[list[int]]:
    """Random prompts, two of which begin alike."""
    rng = np.random.default_rng(0)
    lengths = [min(length, longest) for length in LENGTHS]
    prompts = [rng.integers(1, vocab, length).tolist() for length in lengths]
    start = rng.integers(1, vocab, min(SHARED, longest)).tolist()
    return [*prompts, [*start, 5, 6], [*start, *prompts[1][: longest // 2]]]


def apart(found: Answers, expected: Answers) -> float:
    """Largest difference of log-probabilities up to where an answer begins to differ: there two
    tokens are about as likely."""
    worst = 0.0
    for (tokens, here), (others, there) in zip(found, expected, strict=True):
        differs = np.flatnonzero(np.not_equal(tokens, others))
        same = int(differs[0]) if differs.size else len(tokens)
        differences = np.abs(np.subtract(here, there))[: same + 1]
        worst = max(worst, *differences.tolist())
    return worst


if __name__ == "__main__":
    run_stage(measure)
