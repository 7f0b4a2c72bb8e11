"""Compiles the step for buckets and features, ahead of time and in parallel, and keeps the results.

Warm-up is one loop over (bucket, features). Afterwards a missing program is one loud log line, or,
in strict mode, an error.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from jengine.errors import UnexpectedCompile
from jengine.runner.buckets import Bucket, StepShapes
from jengine.runner.features import Features
from jengine.runner.freed_memory import give_back_freed_memory
from jengine.runner.leaves import Leaves
from jengine.runner.ledger import CompileLedger, Key, LedgerEntry
from jengine.runner.multi_step import multi_step
from jengine.runner.pipeline_step import PACKED_AXES, pipeline_step
from jengine.runner.program import Program, Stages
from jengine.runner.state import StepState
from jengine.runner.step import step
from jengine.runner.step_input import packed_size
from jengine.runner.taps import TapSet
from sharding.placement import Placement

logger = logging.getLogger(__name__)
Compiled = Any  # jax.stages.Compiled
ProgressBar = Callable[..., Any]
COMPILER_OPTIONS: dict[str, dict[str, Any]] = {
    "gpu": {
        # XLA takes every kernel's write into the cache for a second cache, and to save memory that
        # is not used it would compute small things again in each layer. The engine sizes memory by
        # what XLA says after compiling, so this limit is put out of reach; in percent.
        "xla_gpu_memory_limit_slop_factor": 1000,
        # A kernel that reads a slice of the packed input would leave the CUDA graph for it.
        "xla_gpu_enable_dynamic_slice_fusion": False,
    }
}

# What XLA puts into CUDA graphs by itself, and exchanges between devices, each of which would
# otherwise end a graph.
GRAPHS_OF_SEVERAL_DEVICES = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,COLLECTIVES"


def compiler_options(platform: str, devices: int) -> dict[str, Any] | None:
    """What XLA is told beside the program; None for a platform where nothing needs saying."""
    options = COMPILER_OPTIONS.get(platform)
    if options is None or devices == 1:
        return options
    return {**options, "xla_gpu_enable_command_buffer": GRAPHS_OF_SEVERAL_DEVICES}


@dataclass(frozen=True)
class StepCompiler:
    """Lowers and compiles one step. Sees shapes only, so it runs before any memory is taken."""

    shapes: StepShapes
    rebuild: Callable[[Leaves], Any]
    leaves: Any  # abstract leaves, with shardings
    state: StepState  # abstract state, with shardings
    placement: Placement
    stages: Stages | None = None  # None: there is one

    def compile(self, bucket: Bucket, features: Features) -> tuple[Compiled, LedgerEntry]:
        """The executable and what it cost."""
        began = time.perf_counter()
        devices = self.placement.mesh.devices
        options = compiler_options(devices.flat[0].platform, devices.size)
        compiled = self.lower(bucket, features).compile(compiler_options=options)
        give_back_freed_memory()
        memory = compiled.memory_analysis()
        return compiled, LedgerEntry(
            bucket,
            features,
            seconds=time.perf_counter() - began,
            temp_bytes=memory.temp_size_in_bytes if memory else 0,
            code_bytes=memory.generated_code_size_in_bytes if memory else 0,
        )

    def lower(self, bucket: Bucket, features: Features) -> jax.stages.Lowered:
        """The program as XLA gets it: the same text for every replica, as it names no devices."""
        program = Program(bucket, features, self.shapes, self.rebuild, self.placement, self.stages)
        everywhere = self.placement.everywhere
        jitted = jax.jit(
            partial(self._body(bucket), program=program),
            donate_argnums=1,
            # The state comes back as it went in, so that the next step finds it in place.
            out_shardings=(jax.tree.map(lambda x: x.sharding, self.state), everywhere),
        )
        return jitted.lower(self.leaves, self.state, self._packed(bucket))

    def _body(self, bucket: Bucket) -> Callable[..., Any]:
        if self.stages is not None:
            return pipeline_step
        return multi_step if bucket.is_multi_step else step

    def _packed(self, bucket: Bucket) -> jax.ShapeDtypeStruct:
        """The packed input, of which every stage has a row of its own, with its number."""
        size = packed_size(bucket, self.shapes)
        shape = (size,) if self.stages is None else (self.placement.num_stages, size + 1)
        axes = PACKED_AXES[-len(shape) :]
        where = self.placement.sharding(axes, shape)
        return jax.ShapeDtypeStruct(shape, np.int32, sharding=where)


class Programs:
    """The compiled steps of one replica, by bucket and features. All replicas share a ledger."""

    def __init__(
        self,
        compiler: StepCompiler,
        tiers: list[Features],
        ledger: CompileLedger,
        *,
        strict: bool,
        planned: Sequence[Key] = (),
    ) -> None:
        self.compiler = compiler
        self.tiers = tiers
        self.strict = strict
        self.ledger = ledger
        # What the engine compiles at its start, or on first use where it compiles nothing then.
        # Other programs are compiled when a step needs one, in the step's own bucket.
        self._planned = tuple(planned)
        self._smallest: dict[Key, Key | None] = {}  # what a step needs -> the planned program
        self._compiled: dict[Key, Compiled] = {}
        # What a warm-up in the background will compile; larger programs stand in for it meanwhile.
        self._later: set[Key] = set()
        self._warm = False

    def keep(self, compiled: Compiled, entry: LedgerEntry) -> None:
        """Take in a program that was compiled elsewhere: while sizing, or in the background."""
        key = (entry.bucket, entry.features)
        self.ledger.add(entry)  # first, since a step looks there for what it finds compiled
        self._compiled[key] = compiled
        self._later.discard(key)

    def expect_later(self, keys: Iterable[Key]) -> None:
        """Let larger programs stand in for these until they are there."""
        self._later.update(self.missing(keys))
        self.ledger.expect(self._later)

    def bucket_for(self, bucket: Bucket, needed: Features) -> Bucket:
        """The bucket in which a step of this size runs now.

        That of the smallest planned program that covers it, since rare variants have fewer
        buckets; while that one is still to come, of the smallest that is compiled.
        """
        if needed.taps:  # no planned program has taps
            return bucket
        asked = (bucket, needed)
        if asked not in self._smallest:
            self._smallest[asked] = self._smallest_of(self._planned, *asked)
        wanted = self._smallest[asked]
        if wanted is None:
            return bucket
        if wanted in self._later:
            self.ledger.note_asked(wanted)
            wanted = self._smallest_of(list(self._compiled), *asked) or wanted
        return wanted[0]

    def _smallest_of(self, keys: Sequence[Key], bucket: Bucket, needed: Features) -> Key | None:
        """The program among these that runs such a step with least padding."""
        able = [key for key in keys if key[0].covers(bucket) and key[1].covers(needed)]

        def size(key: Key) -> tuple[int, int, int]:
            return key[0].num_tokens, key[0].pages, self.tiers.index(key[1])

        return min(able, key=size, default=None)

    def missing(self, wanted: Iterable[Key]) -> list[Key]:
        """Those that are not there yet."""
        return [key for key in wanted if key not in self._compiled]

    def end_warm_up(self) -> None:
        """What is compiled from now on, a step has to wait for."""
        self._warm = True

    def find(self, bucket: Bucket, needed: Features) -> tuple[Compiled, LedgerEntry]:
        """The cheapest program that can run this step; compiled now if there is none."""
        tiers = self.tiers
        if needed.taps:  # no tier has taps: these are compiled when they are first needed
            tiers = [replace(tier, taps=needed.taps) for tier in tiers]
        for tier in tiers:
            if tier.covers(needed) and (bucket, tier) in self._compiled:
                return self._compiled[bucket, tier], self.ledger.entries[bucket, tier]
        features = next((tier for tier in tiers if tier.covers(needed)), needed)
        self._late(bucket, features)
        return self._compiled[bucket, features], self.ledger.entries[bucket, features]

    def expect(self, bucket: Bucket, needed: Features) -> None:
        """Refuse what strict mode would refuse later, when a plan can no longer be left out."""
        if self.strict:
            self.find(self.bucket_for(bucket, needed), needed)

    def forget(self, taps: TapSet) -> None:
        """Drop the programs of taps that will not be used again."""
        for bucket, features in [key for key in list(self._compiled) if taps in key[1].taps]:
            del self._compiled[bucket, features]
            self.ledger.entries.pop((bucket, features), None)  # replicas have it in common

    def _late(self, bucket: Bucket, features: Features) -> None:
        if self.strict and self._warm:
            raise UnexpectedCompile(
                f"strict mode: step {bucket} with features {features} was not compiled in warm-up. "
                "Add its variant to compilation_config['variants'], or use strict=False, which "
                "capture and intervene always need."
            )
        compiled, entry = self.compiler.compile(bucket, features)
        if self._warm:
            entry.after_warm_up = True
            logger.warning(
                "a step waited %.2f s for its program, %s with features %s, which warm-up had left "
                "out; compilation_config['variants'] says what is compiled at the start",
                entry.seconds, bucket, features,
            )  # fmt: skip
        self.keep(compiled, entry)


def warm_up(replicas: Sequence[Programs], wanted: Iterable[Key], bar: ProgressBar) -> None:
    """Compile everything in `wanted` that is not there yet, with a progress bar.

    Different programs are compiled at once, one program for its replicas in turn: all but the
    first find it in the persistent cache where that does not tell devices apart, as on GPUs.
    """
    began = time.perf_counter()
    jobs: dict[Key, list[Programs]] = {}
    keys = list(wanted)
    for programs in replicas:
        for key in programs.missing(keys):
            jobs.setdefault(key, []).append(programs)
    total = sum(map(len, jobs.values()))
    with (
        ThreadPoolExecutor(max(1, os.cpu_count() or 1), "compile") as pool,
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
    """One program for each of these replicas."""
    return [(programs, *programs.compiler.compile(*key)) for programs in owners]
