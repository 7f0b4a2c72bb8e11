"""Embedding throughput, alternating with other engines on the same prompts.

`python -m jengine.bench.embeddings MODEL --against sentence-transformers:PYTHON vllm:PYTHON`;
`transformers` is a third peer, run as sentence-transformers runs it. MODEL is a folder whose
embeddings are means of hidden states, such as the one with random weights that
`python -m jengine.bench.models minilm-22m FOLDER` writes. Prompts are random tokens of random
lengths, mostly short. A round runs every engine once; the median of some rounds counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jengine import LLM
from jengine.bench.against import PROGRAMS, PeerProcess
from jengine.bench.frame import Benchmark
from jengine.bench.rates import printed_rates, rates_of
from jengine.errors import ConfigError

PEERS = ("transformers", "sentence-transformers", "vllm")


@dataclass(frozen=True)
class EmbeddingSettings:
    peer: str
    model: str
    trace: str
    dtype: str


def prompts_of(count: int, longest: int, vocab_size: int) -> list[list[int]]:
    """Random prompts, half of them shorter than 32 tokens."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(32), 0.8, count).astype(int), 4, longest)
    return [rng.integers(5, vocab_size, length).tolist() for length in lengths]


def opened_peer(word: str, model: str, trace: Path, dtype: str) -> PeerProcess:
    """Start the peer given as NAME or NAME:PYTHON."""
    name, _, python = word.partition(":")
    if name not in PEERS:
        raise ConfigError(f"--against {name!r}: expected one of {', '.join(PEERS)}.")
    command = [python or sys.executable, str(PROGRAMS / "embeddings_peer.py")]
    return PeerProcess(name, command, EmbeddingSettings(name, model, str(trace), dtype))


def own_seconds(llm: LLM, prompts: list[list[int]]) -> float:
    """Seconds for jengine to embed all prompts."""
    began = time.perf_counter()
    llm.embed(prompts, use_tqdm=False)
    return time.perf_counter() - began


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Embeddings per second of each engine, and jengine's ratio to each."""
    with ExitStack() as stack:
        llm = stack.enter_context(
            LLM(
                arguments.model, runner="pooling", dtype=arguments.dtype,
                pooler_config={"seq_pooling_type": "MEAN", "use_activation": True},
                skip_tokenizer_init=True, seed=0,
            )
        )  # fmt: skip
        model = llm.engine.model
        prompts = prompts_of(arguments.prompts, llm.max_model_len, model.vocab_size)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trace = folder / "prompts.json"
        trace.write_text(json.dumps(prompts), encoding="utf-8")
        peers = [
            stack.enter_context(opened_peer(word, arguments.model, trace, arguments.dtype))
            for word in arguments.against
        ]
        seconds: dict[str, list[float]] = {"jengine": [], **{one.name: [] for one in peers}}
        own_seconds(llm, prompts)
        for peer in peers:
            peer.run()
        for _ in range(arguments.rounds):
            seconds["jengine"].append(own_seconds(llm, prompts))
            for peer in peers:
                seconds[peer.name].append(peer.run()[0])
        return {
            "prompts": len(prompts),
            "tokens": sum(map(len, prompts)),
            **rates_of("embeddings", len(prompts), seconds),
            "peers": {one.name: one.version for one in peers},
        }


FLAGS = {
    "model": {},
    "--against": {"nargs": "*", "default": [], "metavar": "NAME[:PYTHON]"},
    "--prompts": 1000, "--rounds": 3, "--dtype": "float32",
}  # fmt: skip
main = Benchmark("embeddings", __doc__, FLAGS, measured, printed_rates("embeddings")).main


if __name__ == "__main__":
    raise SystemExit(main())
