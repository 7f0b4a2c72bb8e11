"""Output tokens a second on a workload, alone or in turn with a peer on the same work.

All requests are greedy and ignore the end token, so the amount of work is fixed. The prefix cache
is emptied before each run.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from jengine.bench.against import Peer, PeerSettings
from jengine.bench.surroundings import peak_bytes, surroundings
from jengine.bench.workloads import Item, read_trace, write_trace
from jengine.engine.llm import LLM
from jengine.sampling_params import SamplingParams


class Opponent(Protocol):
    """Somebody else who runs the same work, in turn with us."""

    version: str
    startup_s: float

    def run(self) -> tuple[float, int]:
        """Seconds of one run, and the tokens it made."""
        ...


# Opens an opponent for a trace file.
Challenge = Callable[[LLM, Path], AbstractContextManager[Opponent]]


class OtherEngine:
    """An engine of ours with other settings, as an opponent."""

    def __init__(self, llm: LLM, items: list[Item], version: str, startup_s: float) -> None:
        self.llm, self.items = llm, items
        self.version, self.startup_s = version, startup_s

    def run(self) -> tuple[float, int]:
        """Seconds of one run, and the tokens it made."""
        return run_once(self.llm, self.items)


def peer(name: str, python: str | None) -> Challenge:
    """A program of others."""
    return lambda llm, trace: Peer(name, python, peer_settings(llm, trace))


def other_engine(open_llm: Callable[[], LLM], version: str) -> Challenge:
    """An engine of ours with other settings."""

    @contextmanager
    def challenge(_: LLM, trace: Path) -> Iterator[Opponent]:
        began = time.perf_counter()
        with open_llm() as llm:
            yield OtherEngine(llm, read_trace(trace), version, time.perf_counter() - began)

    return challenge


def params_of(items: list[Item]) -> list[SamplingParams]:
    """Greedy, exactly as long as asked for."""
    return [
        SamplingParams(temperature=0, max_tokens=item.max_tokens, ignore_eos=True, detokenize=False)
        for item in items
    ]


def run_once(llm: LLM, items: list[Item]) -> tuple[float, int]:
    """Seconds of one run, and the tokens it made."""
    prompts, params = [item.prompt_token_ids for item in items], params_of(items)
    llm.reset_prefix_cache()
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    return seconds, sum(len(output.outputs[0].token_ids) for output in outputs)


def measure(
    llm: LLM, items: list[Item], repeats: int, challenge: Challenge | None = None
) -> dict[str, Any]:
    """Everything about `repeats` runs; those of an opponent come between ours."""
    if challenge is None:
        ours = [run_once(llm, items) for _ in range(repeats)]
        return report(llm, items, ours)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        write_trace(items, trace)
        with challenge(llm, trace) as opponent:
            run_once(llm, items)  # both have run once before anything counts
            opponent.run()
            pairs = [(run_once(llm, items), opponent.run()) for _ in range(repeats)]
    result = report(llm, items, [ours for ours, _ in pairs])
    theirs = summary(items, [theirs for _, theirs in pairs])
    result["peer"] = {
        "engine": opponent.version,
        "startup_s": round(opponent.startup_s, 2),
        **theirs,
    }
    result["ratio"] = round(result["output_tok_s"] / theirs["output_tok_s"], 3)
    return result


def peer_settings(llm: LLM, trace: Path) -> PeerSettings:
    """The same limits for the peer."""
    engine = llm.engine
    return PeerSettings(
        model=str(engine.folder),
        trace=str(trace),
        dtype=engine.model.dtype,
        max_num_seqs=engine.schedule.max_num_seqs,
        max_model_len=engine.schedule.max_model_len,
        prefix_caching=engine.cache.enable_prefix_caching,
    )


def summary(items: list[Item], runs: list[tuple[float, int]]) -> dict[str, Any]:
    """Speeds of the median run."""
    seconds, generated = statistics.median(seconds for seconds, _ in runs), runs[0][1]
    read = sum(len(item.prompt_token_ids) for item in items)
    return {
        "seconds": [round(one, 3) for one, _ in runs],
        "generated": generated,
        "requests_s": round(len(items) / seconds, 2),
        "total_tok_s": round((generated + read) / seconds, 1),
        "output_tok_s": round(generated / seconds, 1),
    }


def report(llm: LLM, items: list[Item], runs: list[tuple[float, int]]) -> dict[str, Any]:
    """What was run, on what, and how fast it was."""
    stats = llm.stats()
    return {
        "bench": "throughput",
        **surroundings(),
        "dtype": llm.engine.model.dtype,
        "max_num_seqs": llm.engine.schedule.max_num_seqs,
        "requests": len(items),
        "prompt_tokens": sum(len(item.prompt_token_ids) for item in items),
        **summary(items, runs),
        "preemptions": stats.preemptions,
        "prefix_hit_rate": round(stats.prefix_hits / max(stats.prefix_queries, 1), 3),
        "peak_rss_gb": round(peak_bytes() / 1e9, 2),
        "programs": llm.ledger.as_dicts(),
    }


def printed(result: dict[str, Any]) -> str:
    """The lines that people look for."""
    lines = [
        f"Throughput: {result['requests_s']:.2f} requests/s, {result['total_tok_s']:.2f} total "
        f"tokens/s, {result['output_tok_s']:.2f} output tokens/s",
        f"Total num prompt tokens:  {result['prompt_tokens']}",
        f"Total num output tokens:  {result['generated']}",
    ]
    if "peer" in result:
        peer = result["peer"]
        lines.append(f"{peer['engine']}: {peer['output_tok_s']:.2f} output tokens/s")
        lines.append(f"Ratio: {result['ratio']:.2f} x")
    return "\n".join(lines)
