"""Scaling: host time by requests, decode step time by rows and context, memory by both.

A decode step reads all weights and the keys and values of its rows. The time that this takes at the
speed of memory, measured beside it, is its floor.

In: an engine in which nothing runs. Out: a dict of tables, and from such a dict a page of charts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jengine.api.llm import LLM
from jengine.bench import host
from jengine.bench.driver import Driver
from jengine.bench.frame import earlier
from jengine.bench.machine import cores, hardware_of
from jengine.bench.peak_memory import device_stats, resident_bytes
from jengine.bench.surroundings import surroundings
from jengine.engine.core import EngineCore
from jengine.errors import ConfigError
from jengine.pictures.page import Columns, Section, curves, report, write
from jengine.runner.step.group_arrays import each_array
from jengine.sampling_params import SamplingParams

# Each number of requests is this multiple of the one before.
FACTOR = 4
Column = tuple[str, str, float]  # key, heading, divisor
# Larger than the caches of most processors.
PROBE_NUMBERS = 2**28
PROBES = 5
PARTS_PER_THREAD = 8
read = partial(earlier, kind="growth", command="bench growth")


def measure(
    llm: LLM,
    *,
    running: Sequence[int],
    steps: int,
    contexts: Sequence[int],
    rows: Sequence[int],
    iterations: int,
    prompt_length: int,
) -> dict[str, Any]:
    """All three tables. Memory is measured first, since decode steps overwrite the cache."""
    core = llm.engine.in_process.core
    if not isinstance(core, EngineCore):
        raise ConfigError("bench growth: expected one engine in this process, without replicas.")
    held = memory_growth(llm, core, prompt_length)
    decode, left_out = decode_growth(llm, contexts, rows, iterations)
    speed = read_gb_s() if jax.default_backend() == "cpu" else None
    return {
        "bench": "growth",
        **surroundings(),
        "dtype": llm.engine.model.dtype,
        "max_model_len": llm.engine.schedule.max_model_len,
        "prompt_length": prompt_length,
        "host": [host.measure(count, steps) for count in running],
        "read_gb_s": speed,
        "decode": [with_floor(row, speed) for row in decode],
        "left_out": left_out,
        "memory": held,
    }


def decode_growth(
    llm: LLM, contexts: Sequence[int], rows: Sequence[int], iterations: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """Decode step time for each (rows, context); sizes that do not fit are listed."""
    driver, most = Driver(llm), llm.engine.schedule.max_num_seqs
    found, left_out = [], []
    for count in rows:
        for context in contexts:
            if count <= most and driver.fits(count, context, iterations):
                found.append(driver.decode(count, context, iterations))
            else:
                left_out.append(f"{count} x {context}")
    llm.reset_prefix_cache()  # its blocks no longer hold what their hashes say
    return found, left_out


def with_floor(row: dict[str, Any], speed: float | None) -> dict[str, Any]:
    """Add the bandwidth bound: bytes read over measured memory bandwidth."""
    floor = None if speed is None else round(row["read_bytes"] / speed / 1e6, 3)
    return {**row, "floor_ms": floor}


def memory_growth(llm: LLM, core: EngineCore, prompt_length: int) -> list[dict[str, Any]]:
    """Bytes in use with 1, 4, 16, ... requests, after prefill and one token each."""
    schedule, block_size = llm.engine.schedule, llm.engine.cache.block_size
    if not 0 < prompt_length < schedule.max_model_len:
        raise ConfigError(
            f"--input-len {prompt_length}: expected less than max_model_len, "
            f"{schedule.max_model_len}, so that there is room for an answer."
        )
    # While the last prompts are prefilled, the first requests decode at most this many tokens.
    longest = min(schedule.max_model_len, prompt_length + reading_steps(llm, prompt_length))
    blocks = core.scheduler.cache.config.fewest_blocks - 1
    together = blocks // -(-longest // block_size)
    counts = counts_up_to(min(schedule.max_num_seqs, together))
    return [held(llm, core, count, prompt_length) for count in counts]


def reading_steps(llm: LLM, prompt_length: int) -> int:
    """Number of steps to prefill all rows, with a margin."""
    schedule = llm.engine.schedule
    whole = -(-prompt_length // schedule.prefill_tile) * schedule.prefill_tile
    return schedule.max_num_seqs * whole // schedule.max_num_batched_tokens + 8


def counts_up_to(most: int) -> list[int]:
    """1, 4, 16, ..., and `most` itself."""
    counts = [1]
    while counts[-1] * FACTOR < most:
        counts.append(counts[-1] * FACTOR)
    return counts if most <= 1 else [*counts, most]


def held(llm: LLM, core: EngineCore, count: int, prompt_length: int) -> dict[str, Any]:
    """Memory in use while this many requests run."""
    session, rng = llm.engine.session, np.random.default_rng(count)
    llm.reset_prefix_cache()
    shape = (count, prompt_length)
    prompts = rng.integers(0, llm.engine.model.vocab_size, shape).tolist()
    params = SamplingParams(
        temperature=0, max_tokens=llm.engine.schedule.max_model_len - prompt_length,
        ignore_eos=True, detokenize=False,
    )  # fmt: skip
    asked = [session.submit({"prompt_token_ids": prompt}, params) for prompt in prompts]
    answered: set[str] = set()
    try:
        while len(answered) < count:
            answered |= {answer.request_id for answer in session.step()}
        return {
            "requests": count,
            "running": core.counts().running,
            "blocks": sum(group.num_used for group in core.scheduler.cache.groups),
            "cache_bytes": cache_bytes(llm, core),
            "resident_bytes": resident_bytes(),
            "device_bytes": device_stats(llm).get("bytes_in_use"),
        }
    finally:
        for answer in asked:
            session.discard(answer)


def cache_bytes(llm: LLM, core: EngineCore) -> int:
    """Bytes of allocated blocks over all groups."""
    groups, caches = core.scheduler.cache.groups, llm.engine.loaded.state.caches
    blocks = llm.engine.cache.num_blocks
    return sum(
        group.num_used * (sum(array.nbytes for array in each_array(cache)) // count)
        for group, cache, count in zip(groups, caches, blocks, strict=True)
    )


def printed(result: dict[str, Any]) -> str:
    columns: list[Column] = [
        ("rows", "rows", 1), ("context", "context", 1), ("queued_ms", "queued ms", 1),
        ("reading_ms", "read ms", 1), ("tok_s", "tokens/s", 1),
    ]  # fmt: skip
    if has_floor(result):
        columns.append(("floor_ms", "floor ms", 1))
    parts = [
        "Host time of a step (no model runs):",
        host.printed({"results": result["host"]}),
        "",
        "Time of a decode step:",
        *table(columns, result["decode"]),
    ]
    if result["left_out"]:
        left_out = ", ".join(map(str, result["left_out"]))
        parts.append(f"left out, beyond max_num_seqs, max_model_len or the cache: {left_out}")
    if has_floor(result):
        parts.append(f"floor: what a step reads, at the {result['read_gb_s']} GB/s of memory here")
    columns = [
        ("requests", "requests", 1), ("blocks", "blocks", 1), ("cache_bytes", "cache MB", 1e6),
        ("resident_bytes", "resident MB", 1e6),
    ]  # fmt: skip
    if result["memory"][0]["device_bytes"] is not None:
        columns.append(("device_bytes", "device MB", 1e6))
    parts += ["", f"Memory with prompts of {result['prompt_length']} tokens:"]
    return "\n".join([*parts, *table(columns, result["memory"])])


def has_floor(result: dict[str, Any]) -> bool:
    """Whether bandwidth was measured; older results lack it."""
    return result.get("read_gb_s") is not None


def table(columns: Iterable[Column], rows: list[dict[str, Any]]) -> list[str]:
    """Rows as right-aligned columns."""
    columns = list(columns)
    lines = [" ".join(f"{name:>12}" for _, name, _ in columns)]
    for row in rows:
        cells = [row[key] / unit if unit != 1 else row[key] for key, _, unit in columns]
        lines.append(" ".join(f"{f'{c:,.2f}' if isinstance(c, float) else c:>12}" for c in cells))
    return lines


def draw(result: dict[str, Any], folder: Path) -> Path:
    """Write the page of charts; returns its path."""
    return write(page(result), folder / "growth.html")


def page(result: dict[str, Any]) -> str:
    """Findings and one chart per table, with logarithmic axes."""
    about = f"{result['command']}, commit {result['commit']}, {hardware_of(result)}"
    charts = [
        chart("Host time of a step", "Milliseconds, by running requests. No model runs.",
              result["host"], "running",
              {"total_ms": "together", "pack_ms": "packing",
               "schedule_and_commit_ms": "scheduling and committing"})
    ]  # fmt: skip
    lines = {"cache_bytes": "cache blocks in use", "resident_bytes": "the process"}
    if result["memory"][0]["device_bytes"] is not None:
        lines["device_bytes"] = "the device"
    lead = f"Megabytes, by requests of {result['prompt_length']} tokens."
    charts.append(chart("Memory", lead, result["memory"], "requests", lines, unit=1e6))
    lines = {"reading_ms": "reading every step", "queued_ms": "queuing only"}
    if has_floor(result):
        lines["floor_ms"] = "memory's floor"
    for count, steps in by_rows(result).items():
        lead = f"Milliseconds, by context of each row; rows: {count}."
        charts.append(chart("Time of a decode step", lead, steps, "context", lines))
    return report(f"Growth: {findings(result)}", [about], Columns(*charts), name="Growth")


def by_rows(result: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """Decode times grouped by number of rows, over context."""
    counts = dict.fromkeys(row["rows"] for row in result["decode"])
    return {count: [row for row in result["decode"] if row["rows"] == count] for count in counts}


def findings(result: dict[str, Any]) -> str:
    """Figures at the largest sizes measured."""
    host = result["host"]
    found = [
        f"the host takes {host[-1]['total_ms']:,.2f} ms for a step of {host[-1]['running']:,} "
        f"requests ({host[-1]['us_per_request']:,.1f} us each)"
    ]
    if result["decode"]:
        rows, steps = list(by_rows(result).items())[-1]
        found.append(
            f"{rows:,} {'row' if rows == 1 else 'rows'} of {steps[-1]['context']:,} tokens decode "
            f"in {steps[-1]['queued_ms']:,.1f} ms ({steps[0]['queued_ms']:,.1f} at "
            f"{steps[0]['context']:,} tokens)"
        )
    return ", ".join(found)


def chart(
    title: str, lead: str, rows: list[dict[str, Any]], across: str, lines: dict[str, str],
    unit: float = 1,
) -> Section:  # fmt: skip
    """One section: a line for each of up to three columns."""
    values = {name: [row[key] / unit for row in rows] for key, name in lines.items()}
    return curves(title, lead, values, [f"{row[across]:,}" for row in rows])


def read_gb_s(numbers: int = PROBE_NUMBERS) -> float:
    """Best of a few passes over 1 GiB of float32, one thread per core."""
    threads = cores() or 1
    parts = np.array_split(np.ones(numbers, np.float32), threads * PARTS_PER_THREAD)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(PROBES):
            began = time.perf_counter()
            # A dot product of a part with itself reads it once, with vector instructions and
            # without Python's lock.
            list(pool.map(lambda part: np.dot(part, part), parts))
            best = min(best, time.perf_counter() - began)
    return round(4 * numbers / 1e9 / best, 2)
