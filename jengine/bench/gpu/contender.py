"""Stage: engines on the same requests: one alone, for a table, or jengine and a peer in turns.

Every engine has random weights of the same shapes, which take as long as real ones, draws no
samples, and answers each request to its full length. Lines of the table say what must be read and
computed at least, so that `report` can give times as multiples of what this device was seen to
reach.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import jengine
from jengine.api.llm import LLM
from jengine.bench.against import PeerProcess, PeerWork, trace_peer
from jengine.bench.gpu.cases import Requests, sizes
from jengine.bench.gpu.models import write_config
from jengine.bench.gpu.part import StageResult, run_stage
from jengine.bench.throughput import run_once
from jengine.bench.workloads import Item, write_trace
from jengine.config import ModelConfig
from jengine.models.parameter import named_parameters
from jengine.models.registry import model_config
from jengine.weights.abstract import abstract_model

OURS = ("auto", "fa4", "triton")
MEMORY = 0.85  # of the device's, for all engines that are loaded at once
ROUNDS = 3  # that count, after one that does not


class LoadedEngine(Protocol):
    """An engine that is loaded."""

    version: str

    def seconds(self, items: list[Item]) -> float: ...


class Ours:
    def __init__(self, llm: LLM, wanted: str) -> None:
        shapes = llm.engine.loaded.shapes
        self.llm, self.kernels = llm, shapes.prompts or shapes.attention
        self.version = f"jengine {jengine.__version__}, {wanted}"

    def seconds(self, items: list[Item]) -> float:
        return run_once(self.llm, items)[0]


class Theirs:
    def __init__(self, peer: PeerProcess, folder: Path) -> None:
        self.peer, self.version, self.folder = peer, peer.version, folder

    def seconds(self, items: list[Item]) -> float:
        trace = self.folder / "trace.jsonl"
        write_trace(items, trace)
        seconds, generated = self.peer.run(trace)
        assert generated == sum(item.max_tokens for item in items), "answers of full length"
        return seconds


def measure(part: StageResult, args: argparse.Namespace) -> None:
    """One line per set of requests."""
    chosen = sizes(dry_run=args.dry_run)
    names = ("auto", args.engine) if args.race else (args.engine,)
    what, works = ("race", chosen.race) if args.race else ("table", chosen.table)
    with part.attempt("start", args.engine), ExitStack() as stack:
        engines = [stack.enter_context(opened(name, args, works, len(names))) for name in names]
        for work in part.in_time(works):
            with part.attempt(what, work):
                config = model_config(chosen.models[args.model])
                took = seconds_of_each(engines, work, config.vocab_size)
                part.add(
                    **raced(engines[1], work, *took) if args.race
                    else line(engines[0], work, took[0], config, args.engine)
                )  # fmt: skip


def seconds_of_each(engines: Sequence[LoadedEngine], work: Requests, vocab: int) -> list[float]:
    """The best round of each engine, which take turns."""
    rounds = []
    for _ in range(ROUNDS + 1):
        items = made_up(work, vocab)
        rounds.append([engine.seconds(items) for engine in engines])
    return [min(took) for took in zip(*rounds[1:], strict=True)]


def made_up(work: Requests, vocab: int) -> list[Item]:
    """Random requests."""
    ids = np.random.default_rng(time.time_ns()).integers(1, vocab, (work.count, work.prompt))
    return [Item(prompt, work.answer) for prompt in ids.tolist()]


@contextmanager
def opened(
    name: str, args: argparse.Namespace, works: tuple[Requests, ...], share: int
) -> Iterator[LoadedEngine]:
    """An engine with room for the longest and the most requests, one of so many that share the
    device."""
    config = sizes(dry_run=args.dry_run).models[args.model]
    folder = write_config(args.part.parent / "models" / args.model, config)
    most, longest = max(one.count for one in works), max(one.tokens for one in works)
    if name in OURS:
        backend = "auto" if args.dry_run else name
        with LLM(
            folder, load_format="dummy", skip_tokenizer_init=True, max_num_seqs=most,
            max_model_len=longest, gpu_memory_utilization=MEMORY / share, show_progress=False,
            enable_prefix_caching=False, attention_backend=backend,
            compilation_config={"wait_for": "all"},
        ) as llm:  # fmt: skip
            ours = Ours(llm, name)
            if backend != "auto" and ours.kernels != name:
                raise RuntimeError(f"the engine runs {ours.kernels}; its log says why")
            yield ours
        return
    with tempfile.TemporaryDirectory() as work:
        settings = PeerWork(
            str(folder), str(Path(work) / "trace.jsonl"), config["torch_dtype"], most, longest,
            False, "dummy", MEMORY / share,
        )  # fmt: skip
        write_trace([Item([1], 1)], Path(settings.trace))
        with trace_peer(name, args.peer_python, settings) as peer:
            yield Theirs(peer, Path(work))


def raced(peer: LoadedEngine, work: Requests, mine: float, other: float) -> dict[str, Any]:
    """Both times, and the ratio."""
    tokens = work.count * work.answer
    return {
        "what": "race", "case": str(work), "peer": peer.version, "ms": round(mine * 1e3, 1),
        "peer_ms": round(other * 1e3, 1), "tok_s": round(tokens / mine, 1),
        "peer_tok_s": round(tokens / other, 1), "ratio": round(other / mine, 3),
    }  # fmt: skip


def line(
    engine: LoadedEngine, work: Requests, best: float, config: ModelConfig, name: str
) -> dict[str, Any]:
    """The time, and the least that it takes."""
    counted = work.prompt if work.is_prompts else work.answer
    return {
        "what": "table", "case": str(work), "engine": name, "version": engine.version,
        "ms": round(best * 1e3, 2), "tok_s": round(work.count * counted / best, 1),
        "least": least(work, config),
    }  # fmt: skip


def least(work: Requests, config: ModelConfig) -> list[dict[str, float]]:
    """Bytes and operations of the prompts at once, and of the decode steps after them. Of models
    whose tokens are multiplied with all weights."""
    weights = {path: one.get_value() for path, one in named_parameters(abstract_model(config))}
    head = "embed.weight" if config.tie_embeddings else "head.weight"
    embedding = {"embed.weight"} - {head}  # one row per token
    read = sum(one.size * one.dtype.itemsize for p, one in weights.items() if p not in embedding)
    layers = sum(one.size for path, one in weights.items() if path not in {*embedding, head})
    outputs = 2 * weights[head].size * work.count
    mixers = [mixer for layer in config.layers for mixer in layer.mixers]
    attention = sum(mixer.operations for mixer in mixers)  # per token and attended token
    half = work.prompt + max(work.answer // 2, 1)
    cached = (
        2
        * sum(  # bytes of a token, in the weights' dtype
            spec.kv_heads * spec.head_dim for specs in config.layer_specs for spec in specs
        )
        * weights[head].dtype.itemsize
    )
    prompts = work.count * work.prompt
    return [
        {"times": 1, "bytes": read,
         "operations": prompts * (2 * layers + attention * work.prompt / 2) + outputs},
        {"times": work.answer - 1, "bytes": read + work.count * half * cached,
         "operations": work.count * (2 * layers + attention * half) + outputs},
    ]  # fmt: skip


if __name__ == "__main__":
    run_stage(measure)
