"""Output tokens per second on a workload, alone or in turns with a peer on the same work.

All requests are greedy and ignore the end token, so the amount of work is fixed. The prefix cache
is emptied before each run. Programs, padding, prefix hits and the peak of memory are of all runs of
this process, an uncounted first one and an opponent's of ours included; times are of counted runs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import msgspec

from jengine.api.llm import LLM
from jengine.bench import step_clock
from jengine.bench.against import PeerWork, check_peer, trace_peer
from jengine.bench.peak_memory import peak_memory
from jengine.bench.step_clock import StepClock
from jengine.bench.surroundings import surroundings
from jengine.bench.workloads import Item, read_trace, write_trace
from jengine.config import SpeculativeConfig
from jengine.engine.core import EngineCore
from jengine.runner.programs.ledger import CompileLedger
from jengine.runner.variants.parts import RUNS_TOKENS
from jengine.sampling_params import SamplingParams
from jengine.weights.prepared import parameter_count


class Opponent(Protocol):
    """An engine under comparison, which runs the same work alternately."""

    version: str
    startup_s: float

    def run(self) -> tuple[float, int]:
        """Run the work once; returns (seconds, generated tokens)."""
        ...


# Opens an opponent for a trace file.
Challenge = Callable[[LLM, Path], AbstractContextManager[Opponent]]


class OtherEngine:
    """A second jengine with other settings, as the opponent."""

    def __init__(self, llm: LLM, items: list[Item], version: str, startup_s: float) -> None:
        self.llm, self.items = llm, items
        self.version, self.startup_s = version, startup_s

    def run(self) -> tuple[float, int]:
        """Run the work once; returns (seconds, generated tokens)."""
        return run_once(self.llm, self.items)


def peer(name: str, python: str | None) -> Challenge:
    """A peer engine's program as the opponent. Raises ConfigError up front if it cannot run."""
    check_peer(name, python)
    return lambda llm, trace: trace_peer(name, python, peer_settings(llm, trace))


def other_engine(open_llm: Callable[[], LLM], version: str) -> Challenge:
    """A second jengine, made by `open_llm`, as the opponent."""

    @contextmanager
    def challenge(_: LLM, trace: Path) -> Iterator[Opponent]:
        began = time.perf_counter()
        with open_llm() as llm:
            yield OtherEngine(llm, read_trace(trace), version, time.perf_counter() - began)

    return challenge


def params_of(items: list[Item]) -> list[SamplingParams]:
    """Greedy sampling of exactly the requested lengths."""
    return [
        SamplingParams(temperature=0, max_tokens=item.max_tokens, ignore_eos=True, detokenize=False)
        for item in items
    ]


def run_once(llm: LLM, items: list[Item]) -> tuple[float, int]:
    """Run the work once; returns (seconds, generated tokens)."""
    prompts, params = [item.prompt_token_ids for item in items], params_of(items)
    llm.reset_prefix_cache()
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    return seconds, sum(len(output.outputs[0].token_ids) for output in outputs)


class EngineRuns:
    """Counted runs of the engine under test."""

    def __init__(self, llm: LLM, items: list[Item]) -> None:
        self.llm, self.items = llm, items
        self.clock = StepClock()
        core = llm.engine.in_process.core
        # With several replicas or processes no single core sees all of the time.
        self.core = core if isinstance(core, EngineCore) else None

    def run(self) -> tuple[float, int]:
        """Run the work once; returns (seconds, generated tokens)."""
        timed = nullcontext() if self.core is None else self.clock.running(self.core)
        with timed:
            return run_once(self.llm, self.items)

    @property
    def time(self) -> dict[str, Any] | None:
        """Breakdown of the time of all runs (host, waiting, device idle)."""
        return None if self.core is None else self.clock.as_dict()


def measure(
    llm: LLM, items: list[Item], repeats: int, challenge: Challenge | None = None
) -> dict[str, Any]:
    """Run the workload `repeats` times, alternating with an opponent if given."""
    ours = EngineRuns(llm, items)
    if challenge is None:
        return report(ours, [ours.run() for _ in range(repeats)])
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        write_trace(items, trace)
        with challenge(llm, trace) as opponent:
            run_once(llm, items)  # both have run once before anything counts
            opponent.run()
            pairs = [(ours.run(), opponent.run()) for _ in range(repeats)]
    mine, other = zip(*pairs, strict=True)
    result, theirs = report(ours, mine), summary(items, other)
    result["peer"] = {
        "engine": opponent.version,
        "startup_s": round(opponent.startup_s, 2),
        **theirs,
    }
    result["ratio"] = round(output_rate(mine) / output_rate(other), 3)
    return result


def peer_settings(llm: LLM, trace: Path) -> PeerWork:
    """This engine's limits, as settings for the peer."""
    engine = llm.engine
    return PeerWork(
        model=str(engine.folder),
        trace=str(trace),
        dtype=engine.model.dtype,
        max_num_seqs=engine.schedule.max_num_seqs,
        max_model_len=engine.schedule.max_model_len,
        prefix_caching=engine.cache.enable_prefix_caching,
        speculative_config=peer_drafts(engine.schedule.speculative),
    )


def peer_drafts(own: SpeculativeConfig | None) -> dict[str, Any] | None:
    """This engine's speculative settings for the peer, if it supports them: n-gram only."""
    if own is None or own.method != "ngram":
        return None
    names = "method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"
    return {name: getattr(own, name) for name in names}


def output_rate(runs: Sequence[tuple[float, int]]) -> float:
    """Generated tokens a second of the median run."""
    return runs[0][1] / statistics.median(seconds for seconds, _ in runs)


def summary(items: list[Item], runs: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """Throughput of the median run."""
    seconds, generated = statistics.median(seconds for seconds, _ in runs), runs[0][1]
    read = sum(len(item.prompt_token_ids) for item in items)
    return {
        "seconds": [round(one, 3) for one, _ in runs],
        "generated": generated,
        "requests_s": round(len(items) / seconds, 2),
        "total_tok_s": round((generated + read) / seconds, 1),
        "output_tok_s": round(output_rate(runs), 2),
    }


def report(ours: EngineRuns, runs: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """Workload, hardware and throughput."""
    llm, items = ours.llm, ours.items
    stats, ledger = llm.stats(), llm.ledger
    return {
        "bench": "throughput",
        **surroundings(),
        "parameters": parameter_count(llm.engine.declared),
        "dtype": llm.engine.model.dtype,
        "max_num_seqs": llm.engine.schedule.max_num_seqs,
        "requests": len(items),
        "prompt_tokens": sum(len(item.prompt_token_ids) for item in items),
        **summary(items, runs),
        "preemptions": stats.preemptions,
        "drafts_by": llm.engine.schedule.speculative and llm.engine.schedule.speculative.method,
        "drafts": msgspec.to_builtins(stats.drafts),
        "prefix_hit_rate": round(stats.prefix_hits / max(stats.prefix_queries, 1), 3),
        "time": ours.time,
        "memory": peak_memory(llm),
        "compile_s": round(sum(entry.seconds for entry in ledger.entries.values()), 2),
        "warm_up_s": round(ledger.warm_up_seconds, 2),
        "padded_share": padded_share(ledger),
        "programs": ledger.as_dicts(),
    }


def padded_share(ledger: CompileLedger) -> float:
    """Padding as a share of computed tokens."""
    entries = [one for one in ledger.entries.values() if one.features.part in RUNS_TOKENS]
    computed = sum(entry.hits * entry.bucket.num_tokens for entry in entries)
    useful = sum(entry.useful_tokens for entry in entries)
    return round(1 - useful / computed, 4) if computed else 0.0


def printed(result: dict[str, Any]) -> str:
    """Summary lines, with the breakdown of time and memory."""
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
    lines += [
        step_clock.printed(result["time"]),
        *drafts_lines(result["drafts"]),
        f"Prefix hit rate: {result['prefix_hit_rate']:.1%}, preemptions: {result['preemptions']}",
        memory_line(result["memory"]),
        f"Compiling: {result['compile_s']:.2f} s for {len(result['programs'])} programs, in "
        f"{result['warm_up_s']:.2f} s of warm-up",
        f"Padding: {result['padded_share']:.1%} of the tokens computed",
        bucket_table(result["programs"]),
    ]
    return "\n".join(lines)


def drafts_lines(drafts: dict[str, Any]) -> list[str]:
    """Draft acceptance overall and by position; empty without drafts."""
    if not drafts["drafted"]:
        return []
    places = zip(drafts["drafted_at"], drafts["accepted_at"], strict=True)
    each = ", ".join(f"{accepted / max(drafted, 1):.0%}" for drafted, accepted in places)
    return [
        f"Drafted: {drafts['drafted']}, accepted: {drafts['accepted']} "
        f"({drafts['accepted'] / drafts['drafted']:.1%}); by position: {each}"
    ]


def memory_line(memory: dict[str, float | None]) -> str:
    """The peak memory and its parts."""
    peak, where = memory["peak_device_gb"], "on the device"
    if peak is None:
        peak, where = memory["peak_resident_gb"], "resident"
    return (
        f"Peak memory: {peak:.2f} GB {where}, of which weights {memory['weights_gb']:.2f}, cache "
        f"{memory['cache_gb']:.2f}, everything else {memory['over_weights_and_cache_gb']:.2f}"
    )


def bucket_table(programs: list[dict[str, Any]]) -> str:
    """Compiled programs with their compile cost and use."""
    names = f"{'bucket':>16} {'features':>12} {'compile s':>10} {'steps':>7} {'padded':>7}"
    lines = [
        f"{one['bucket']:>16} {one['features']:>12} {one['seconds']:>10.2f} {one['hits']:>7} "
        f"{one['padded_share']:>7.1%}"
        for one in programs
    ]
    return "\n".join([names, *lines])
