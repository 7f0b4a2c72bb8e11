"""Stage: jengine against vLLM on the same requests, alternating, each with part of one device.

`--vllm-python` of the main program names a Python that has vLLM. Both have random weights, which
take as long as real ones, answer every request to its full length, and draw no samples.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from jengine.api.llm import LLM
from jengine.bench.against import PeerWork, trace_peer
from jengine.bench.gpu.cases import sizes
from jengine.bench.gpu.models import write_config
from jengine.bench.gpu.part import Part, run_stage
from jengine.bench.throughput import run_once
from jengine.bench.workloads import Item, write_trace

# Of the device's memory, for each of the two.
SHARE = 0.42
ROUNDS = 3


def measure(part: Part, args: argparse.Namespace) -> None:
    """One line per workload: best-round seconds of each, and the ratio."""
    chosen = sizes(dry_run=args.dry_run)
    config = chosen.models[args.model]
    folder = write_config(args.part.parent / "models" / args.model, config)
    most = max(rows for rows, _, _ in chosen.race)
    longest = max(prompt + answer for _, prompt, answer in chosen.race)
    dtype = config["torch_dtype"]
    llm = LLM(
        folder, load_format="dummy", skip_tokenizer_init=True, max_num_seqs=most,
        max_model_len=longest, gpu_memory_utilization=SHARE, show_progress=False,
        enable_prefix_caching=False, compilation_config={"wait_for": "all"},
    )  # fmt: skip
    with llm, tempfile.TemporaryDirectory() as work:
        for rows, prompt, answer in part.in_time(chosen.race):
            name = f"{rows} x {prompt} + {answer}"
            with part.attempt("race", name):
                items = made_up(rows, prompt, answer, config["vocab_size"])
                trace = Path(work) / "trace.jsonl"
                write_trace(items, trace)
                settings = PeerWork(
                    str(folder), str(trace), dtype, most, longest, False, "dummy", SHARE
                )
                race(part, llm, items, settings, args.peer_python, name)


def race(
    part: Part, llm: LLM, items: list[Item], settings: PeerWork, python: str, name: str
) -> None:
    """Alternating rounds, after one uncounted round each."""
    with trace_peer("vllm", python, settings) as peer:
        ours, theirs = [], []
        for _ in range(ROUNDS + 1):
            ours.append(run_once(llm, items)[0])
            theirs.append(peer.run()[0])
        mine, other = min(ours[1:]), min(theirs[1:])
        tokens = sum(item.max_tokens for item in items)
        part.add(
            what="race", case=name, peer=peer.version, ms=round(mine * 1e3, 1),
            peer_ms=round(other * 1e3, 1), tok_s=round(tokens / mine, 1),
            peer_tok_s=round(tokens / other, 1), ratio=round(other / mine, 3),
        )  # fmt: skip


def made_up(rows: int, prompt: int, answer: int, vocab: int) -> list[Item]:
    """Random requests."""
    rng = np.random.default_rng(time.time_ns())
    return [Item(ids, answer) for ids in rng.integers(1, vocab, (rows, prompt)).tolist()]


if __name__ == "__main__":
    run_stage(measure)
