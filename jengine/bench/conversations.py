"""TTFT of multi-turn conversations whose KV caches do not all fit the device.

In: a model and a number of conversations. Out: a table, and JSON with every setting: the same trace
with what left the device computed again, loaded from the host's memory, and loaded from a folder by
an engine that has just started; and with a device that has room for all, which is the least that a
tier can cost. The engines take turns, a turn of every conversation each. The operating system still
has the folder's files in memory.

With `--against vllm` vLLM computes again too, and offloads where its build does; what it refuses is
kept with its words. Its connector that stores prompts in a folder finds only prompts that are the
same to the end, so the last prompts are asked once more, of engines that have just started: what a
decode server does with prompts that another one has read.

    python -m jengine.bench.conversations --output-json result.json
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jengine import LLM, SamplingParams
from jengine.bench.against import PROGRAMS, PeerFailed, PeerProcess, check_peer
from jengine.bench.frame import Benchmark
from jengine.weights.resolve import resolve_model

BLOCK = 16
ROWS = 4
LAST = "last turn"
AGAIN = "the same prompts again"
# TTFT of each prompt, asked alone, and the answers' tokens.
Asks = Callable[[list[list[int]]], tuple[list[float], list[list[int]]]]


@dataclass(frozen=True)
class ConversationTrace:
    """Random-token conversations, interleaved: every first turn, then every second turn, and so
    on."""

    conversations: int = 64
    turns: int = 8
    turn_tokens: int = 80
    answer_tokens: int = 32
    cached_share: float = 0.25  # of the conversations, for which the device's cache has room
    seed: int = 0

    @property
    def length(self) -> int:
        """Tokens of a whole conversation."""
        return self.turns * (self.turn_tokens + self.answer_tokens)

    @property
    def longest(self) -> int:
        """`max_model_len` of the engines."""
        return self.length + BLOCK

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


class OwnEngine:
    """An engine of ours whose cache holds a share of the conversations."""

    def __init__(self, model: str, trace: ConversationTrace, settings: Mapping[str, Any]) -> None:
        self._trace = trace
        self._open: Callable[[], LLM] = lambda: LLM(
            model, max_model_len=trace.longest, max_num_seqs=ROWS, block_size=BLOCK,
            num_gpu_blocks_override=trace.blocks, seed=trace.seed, **settings,
        )  # fmt: skip
        self.llm = self._opened()

    def __enter__(self) -> OwnEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.llm.shutdown()

    def restart(self) -> None:
        """Lose everything but what a folder has."""
        self.llm.shutdown()
        self.llm = self._opened()

    def __call__(self, prompts: list[list[int]]) -> tuple[list[float], list[list[int]]]:
        params = SamplingParams(
            temperature=0, max_tokens=self._trace.answer_tokens, ignore_eos=True
        )
        seconds, answers = [], []
        for prompt in prompts:
            (output,) = self.llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
            assert output.metrics is not None
            seconds.append(output.metrics.first_token_latency)
            answers.append(list(output.outputs[0].token_ids))
        return seconds, answers

    def _opened(self) -> LLM:
        llm = self._open()
        llm.engine.wait_until_warm()
        return llm


@dataclass(frozen=True)
class PeerConversations:
    """Settings sent to the peer's process."""

    model: str
    max_model_len: int
    max_num_seqs: int
    cache_tokens: int
    answer_tokens: int
    tier: dict[str, Any]  # further settings: where blocks go that leave the device


class PeerEngine(PeerProcess):
    """vLLM in a separate process, with as many tokens of cache as ours."""

    def __init__(
        self, python: str, model: str, trace: ConversationTrace, tier: dict[str, Any]
    ) -> None:
        cached = (trace.blocks - 1) * BLOCK
        work = PeerConversations(model, trace.longest, ROWS, cached, trace.answer_tokens, tier)
        super().__init__("vllm", [python, str(PROGRAMS / "conversations_peer.py")], work)

    def __call__(self, prompts: list[list[int]]) -> tuple[list[float], list[list[int]]]:
        found = self.ask({"prompts": prompts})
        return found["seconds"], found["answers"]


class Talks:
    """All conversations with one engine, and its TTFTs per turn."""

    def __init__(self, asks: Asks, conversations: int) -> None:
        self.asks = asks
        self.prompts: list[list[int]] = [[] for _ in range(conversations)]  # of the latest turn
        self.answers: list[list[int]] = [[] for _ in range(conversations)]
        self.seconds: list[list[float]] = []

    def turn(self, asked: list[list[int]]) -> None:
        """Go on with every conversation."""
        said = zip(self.prompts, self.answers, asked, strict=True)
        self.prompts = [prompt + answer + words for prompt, answer, words in said]
        seconds, self.answers = self.asks(self.prompts)
        self.seconds.append(seconds)


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


def vllm_tiers(folder: str, most_bytes: int) -> dict[str, dict[str, Any]]:
    """vLLM's settings that offload to the host's memory, and from there to a folder."""
    tiers = {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": most_bytes,
        "secondary_tiers": [{"type": "fs", "root_dir": folder}],
    }  # fmt: skip
    return {
        "host": {"kv_offloading_size": most_bytes / 2**30, "kv_offloading_backend": "native"},
        "folder": vllm_connector("OffloadingConnector", tiers),
    }


def vllm_connector(name: str, extra: dict[str, Any]) -> dict[str, Any]:
    """vLLM's settings for one of its connectors."""
    config = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return {"kv_transfer_config": config}


class PeerTiers:
    """vLLM's engines, each with another place for blocks that leave the device."""

    def __init__(self, python: str, model: str, trace: ConversationTrace) -> None:
        self.version = ""
        self.refused: dict[str, str] = {}  # tier -> the last words of the process
        self._python, self._model, self._trace = python, model, trace

    def opened(self, tier: str, settings: dict[str, Any], stack: ExitStack) -> PeerEngine | None:
        """Start vLLM; None if it refuses this tier."""
        try:
            peer = PeerEngine(self._python, self._model, self._trace, settings)
        except PeerFailed as error:
            if not settings:
                raise
            self.refused[tier] = re.sub(r'"\S*/site-packages/', '"', str(error))
            return None
        self.version = peer.version
        return stack.enter_context(peer)


def run(
    model: str, trace: ConversationTrace, host_gib: float, peers: PeerTiers | None = None
) -> dict[str, Any]:
    """Measure every configuration; all of ours must give the same answers."""
    most_bytes = int(host_gib * 2**30)
    with ExitStack() as stack:
        folder, tiers = (stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2))
        roomy = replace(trace, cached_share=1.25)
        own = {
            "recompute": OwnEngine(model, trace, {}),
            "host": OwnEngine(model, trace, {"kv_offloading_size": host_gib}),
            "folder": OwnEngine(model, trace, folder_settings(folder, most_bytes)),
            "device": OwnEngine(model, roomy, {}),
        }
        for one in own.values():
            stack.enter_context(one)
        asks: dict[str, Asks] = {**own}
        if peers is not None:
            for tier, settings in {"recompute": {}, **vllm_tiers(tiers, most_bytes)}.items():
                if (peer := peers.opened(tier, settings, stack)) is not None:
                    asks[f"vllm, {tier}"] = peer
        talks = {name: Talks(one, trace.conversations) for name, one in asks.items()}
        asked = trace.asked(own["recompute"].llm.engine.model.vocab_size).tolist()
        for turn, words in enumerate(asked):
            if turn == trace.turns - 1:
                own["folder"].restart()
            for one in talks.values():
                one.turn(words)
        for name in own:
            assert talks[name].answers == talks["recompute"].answers, f"{name}: other answers"
        own["folder"].restart()
        prompts = talks["recompute"].prompts
        again = {f"folder, {AGAIN}": own["folder"](prompts)[0]}
    if peers is not None:
        again |= vllm_again(peers, prompts)
    return figures(talks, again)


def vllm_again(peers: PeerTiers, prompts: list[list[int]]) -> dict[str, list[float]]:
    """TTFT of prompts that another vLLM has stored in a folder, one file per layer and prompt."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = vllm_connector("ExampleConnector", {"shared_storage_path": folder})
        for _ in range(2):  # the second one loads what the first one stores
            with ExitStack() as stack:
                peer = peers.opened("prompts in a folder", settings, stack)
                if peer is not None:
                    found = {f"vllm, folder, {AGAIN}": peer(prompts)[0]}
    return found


def figures(talks: Mapping[str, Talks], again: Mapping[str, list[float]]) -> dict[str, Any]:
    """Percentiles of all engines, and ratios of their means."""
    found = {}
    for name, one in talks.items():
        if name != "folder":
            found[name] = percentiles(one.seconds[1:])
        if name != "host":
            found[f"{name}, {LAST}"] = percentiles(one.seconds[-1:])
    found["folder after a restart, " + LAST] = found.pop(f"folder, {LAST}")
    found |= {name: percentiles([seconds]) for name, seconds in again.items()}
    mean = {name: one["mean_ms"] for name, one in found.items()}
    ratios = {
        "host": mean["host"] / mean["recompute"],
        "device": mean["device"] / mean["recompute"],
        "folder": mean["folder after a restart, " + LAST] / mean[f"recompute, {LAST}"],
    }
    return {"time_to_first_token": found, "of_recompute": ratios}


def run_given(args: argparse.Namespace) -> dict[str, Any]:
    """Measure what the flags ask for; returns results with settings."""
    trace = ConversationTrace(args.conversations, args.turns, args.turn_tokens, args.answer_tokens)
    folder, peers = resolve_model(args.model), None
    if args.against:
        check_peer(args.against, args.peer_python)
        peers = PeerTiers(args.peer_python or sys.executable, str(folder), trace)
    found = run(str(folder), trace, args.host_gib, peers)
    if peers is not None:
        found |= {"peer": peers.version, "refused_by_peer": peers.refused}
    return {"model": Path(args.model).name, "trace": asdict(trace), **found}


def printed(result: dict[str, Any]) -> str:
    """The times, also as ratios to recomputation."""
    lines = [
        f"{name:<36}" + "".join(f"{key} {value:9.2f}  " for key, value in values.items())
        for name, values in result["time_to_first_token"].items()
    ]
    lines += [f"{name}: {share:.2f} of recompute" for name, share in result["of_recompute"].items()]
    lines += [
        f"vLLM refused {tier}: {why}" for tier, why in result.get("refused_by_peer", {}).items()
    ]
    return "\n".join(lines)


FLAGS = {"--model": "demo", "--conversations": 64, "--turns": 8, "--turn-tokens": 80,
         "--answer-tokens": 32, "--host-gib": 1.0,
         "--against": {"choices": ["vllm"], "help": "take turns with this engine"},
         "--peer-python": {"metavar": "PYTHON", "help": "a Python that has it"}}  # fmt: skip
main = Benchmark("conversations", __doc__, FLAGS, run_given, printed).main


if __name__ == "__main__":
    raise SystemExit(main())
