"""Warm-up: compiles many programs in parallel, with a progress bar."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from jengine.runner.programs.compiler import Compiled
from jengine.runner.programs.ledger import LedgerEntry
from jengine.runner.programs.programs import Programs
from jengine.runner.variants.program_list import Key

ProgressBar = Callable[..., Any]
# Concurrent compiles for an accelerator.
MOST_ON_ACCELERATORS = 4


def compile_threads(platform: str) -> int:
    """Number of concurrent compiles. On accelerators autotuning allocates device memory for
    each."""
    cores = os.cpu_count() or 1
    return cores if platform == "cpu" else min(cores, MOST_ON_ACCELERATORS)


def warm_up(
    replicas: Sequence[Programs], wanted: Iterable[Key], bar: ProgressBar, threads: int
) -> None:
    """Compile the missing programs of `wanted`, with a progress bar.

    Programs are compiled in parallel, but one program's replicas in sequence: where the persistent
    cache does not depend on the device, as on GPUs, all but the first hit it.
    """
    began = time.perf_counter()
    jobs: dict[Key, list[Programs]] = {}
    keys = list(wanted)
    for programs in replicas:
        for key in programs.missing(keys):
            jobs.setdefault(key, []).append(programs)
    total = sum(map(len, jobs.values()))
    with (
        ThreadPoolExecutor(threads, "compile") as pool,
        bar(total=total, desc="Compiling steps", unit="program") as progress,
    ):
        futures = [pool.submit(compile_in_turn, owners, key) for key, owners in jobs.items()]
        try:
            for future in as_completed(futures):
                for programs, compiled, entry in future.result():
                    programs.keep(compiled, entry)
                    progress.update(1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for programs in replicas:
        programs.end_warm_up()
    replicas[0].ledger.warm_up_seconds += time.perf_counter() - began


def compile_in_turn(
    owners: Sequence[Programs], key: Key
) -> list[tuple[Programs, Compiled, LedgerEntry]]:
    """Compile one program for each replica, sequentially."""
    return [(programs, *programs.compile(key)) for programs in owners]
