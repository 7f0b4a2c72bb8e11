"""TTFT of multi-turn conversations whose KV caches do not all fit the device.

In: a model and a number of conversations. Out: a table, and JSON with every setting: the same trace
with what left the device computed again, loaded from the host's memory, and loaded from a folder by
an engine that has just started. The operating system still has the folder's files in memory.

    python -m jengine.bench.conversations --output-json result.json
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jengine import LLM, SamplingParams
from jengine.bench.frame import Benchmark

BLOCK = 16


@dataclass(frozen=True)
class ConversationTrace:
    """Random-token conversations, interleaved: every first turn, then every second turn, and so
    on."""

    conversations: int = 64
    turns: int = 8
    turn_tokens: int = 80
    answer_tokens: int = 32
    cached_share: float = 0.25  # of the conversations that the device's cache has room for
    seed: int = 0

    @property
    def length(self) -> int:
        """Tokens of a whole conversation."""
        return self.turns * (self.turn_tokens + self.answer_tokens)

    @property
    def blocks(self) -> int:
        """Blocks of the device cache, including the null block."""
        held = self.conversations * self.cached_share * -(-self.length // BLOCK)
        return max(int(held), -(-self.length // BLOCK) + 1) + 1

    def asked(self, vocab_size: int) -> np.ndarray:
        """i32[turns, conversations, turn_tokens]: the user's tokens."""
        rng = np.random.default_rng(self.seed)
        size = (self.turns, self.conversations, self.turn_tokens)
        return rng.integers(3, vocab_size, size, dtype=np.int32)


def engine(model: str, trace: ConversationTrace, **settings: Any) -> LLM:
    """An engine whose cache holds only a share of the conversations."""
    return LLM(
        model, max_model_len=trace.length + BLOCK, max_num_seqs=4, block_size=BLOCK,
        num_gpu_blocks_override=trace.blocks, seed=trace.seed, **settings,
    )  # fmt: skip


def seconds_to_first_token(
    llm: LLM, trace: ConversationTrace, texts: list[list[int]], turns: Sequence[int]
) -> list[list[float]]:
    """Run these turns of all conversations sequentially; returns TTFTs per turn."""
    llm.engine.wait_until_warm()
    asked = trace.asked(llm.engine.model.vocab_size)
    params = SamplingParams(temperature=0, max_tokens=trace.answer_tokens, ignore_eos=True)
    found = []
    for turn in turns:
        row = []
        for text, words in zip(texts, asked[turn].tolist(), strict=True):
            text += words
            (output,) = llm.generate([{"prompt_token_ids": list(text)}], params, use_tqdm=False)
            assert output.metrics is not None
            row.append(output.metrics.first_token_latency)
            text += output.outputs[0].token_ids
        found.append(row)
    return found


def measured(
    model: str, trace: ConversationTrace, settings: Mapping[str, Any], *, restarts: bool = False
) -> tuple[list[list[float]], list[list[int]]]:
    """TTFTs per turn after the first, and all answers. With `restarts`, the last turn runs in a new
    engine."""
    texts: list[list[int]] = [[] for _ in range(trace.conversations)]
    turns = list(range(trace.turns))
    with engine(model, trace, **settings) as llm:
        found = seconds_to_first_token(llm, trace, texts, turns[:-1] if restarts else turns)
    if not restarts:
        return found[1:], texts
    with engine(model, trace, **settings) as llm:
        return seconds_to_first_token(llm, trace, texts, turns[-1:]), texts


def folder_settings(folder: str, most_bytes: int) -> dict[str, Any]:
    """Settings for KV offload to host memory and to a folder."""
    tier = {"type": "fs", "root_dir": folder}
    extra = {"cpu_bytes_to_use": most_bytes, "secondary_tiers": [tier]}
    return {
        "kv_transfer_config": {
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        },
    }  # fmt: skip


def percentiles(seconds: Sequence[Sequence[float]]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    values = 1e3 * np.asarray([one for row in seconds for one in row])
    return {
        "mean_ms": float(values.mean()),
        "p50_ms": float(np.percentile(values, 50)),
        "p99_ms": float(np.percentile(values, 99)),
    }


def run(model: str, trace: ConversationTrace, host_gib: float) -> dict[str, Any]:
    """Measure every configuration; all must give the same answers."""
    computed, texts = measured(model, trace, {})
    loaded, same = measured(model, trace, {"kv_offloading_size": host_gib})
    assert same == texts, "answers differ with blocks from the host's memory"
    with tempfile.TemporaryDirectory() as folder:
        settings = folder_settings(folder, int(host_gib * 2**30))
        fetched, same = measured(model, trace, settings, restarts=True)
    assert same == texts, "answers differ with blocks from a folder"
    found = {
        "recompute": percentiles(computed),
        "host": percentiles(loaded),
        "recompute, last turn": percentiles(computed[-1:]),
        "folder after a restart, last turn": percentiles(fetched),
    }
    ratio = {
        "host": found["host"]["mean_ms"] / found["recompute"]["mean_ms"],
        "folder": found["folder after a restart, last turn"]["mean_ms"]
        / found["recompute, last turn"]["mean_ms"],
    }
    return {"time_to_first_token": found, "of_recompute": ratio}


def run_given(args: argparse.Namespace) -> dict[str, Any]:
    """Measure what the flags ask for; returns results with settings."""
    trace = ConversationTrace(args.conversations, args.turns, args.turn_tokens, args.answer_tokens)
    found = run(args.model, trace, args.host_gib)
    return {"model": Path(args.model).name, "trace": asdict(trace), **found}


def printed(result: dict[str, Any]) -> str:
    """The times, also as ratios to recomputation."""
    lines = [
        f"{name:<36}" + "".join(f"{key} {value:9.2f}  " for key, value in values.items())
        for name, values in result["time_to_first_token"].items()
    ]
    lines += [f"{name}: {share:.2f} of recompute" for name, share in result["of_recompute"].items()]
    return "\n".join(lines)


FLAGS = {"--model": "demo", "--conversations": 64, "--turns": 8, "--turn-tokens": 80,
         "--answer-tokens": 32, "--host-gib": 1.0}  # fmt: skip
main = Benchmark("conversations", __doc__, FLAGS, run_given, printed).main


if __name__ == "__main__":
    raise SystemExit(main())
