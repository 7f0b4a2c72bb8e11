"""Compiles the step for one bucket and features, ahead of time, from shapes alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from jengine.outputs import StepOutput
from jengine.runner.memory.freed_memory import give_back_freed_memory
from jengine.runner.programs.compiler_options import CompilerChoices
from jengine.runner.programs.ledger import LedgerEntry
from jengine.runner.step.across import CrossInput
from jengine.runner.step.joined import JoinedReplicas
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.multi_step import multi_step
from jengine.runner.step.pipeline_step import PACKED_AXES, pipeline_step
from jengine.runner.step.program import AdapterProgram, GuesserProgram, Program, Stages
from jengine.runner.step.second_half import Halves, second_half
from jengine.runner.step.state import StepState
from jengine.runner.step.step import (
    EmbedsInput,
    MediaInput,
    step,
    step_across,
    step_with_embeds,
)
from jengine.runner.step.step_input import packed_size
from jengine.runner.variants.buckets import Bucket, StepShapes
from jengine.runner.variants.features import Features
from sharding.jax_settings import engine_context
from sharding.placement import Placement

Compiled = Any  # jax.stages.Compiled


@dataclass(frozen=True)
class StepCompiler:
    """Lowers and compiles one step from shapes alone, before any memory is allocated."""

    shapes: StepShapes
    rebuild: Callable[[Leaves], Any]
    leaves: Any  # abstract leaves, with shardings
    state: StepState  # abstract state, with shardings
    placement: Placement
    stages: Stages | None = None  # None: no pipeline
    choices: CompilerChoices = field(default_factory=CompilerChoices)
    guesser: GuesserProgram | None = None  # None: steps make no guesses
    hidden: int = 0  # width of embeddings that are given
    splits: bool = False  # whether steps are split, for logits processors of the host
    adapters: AdapterProgram | None = None  # None: rows have none
    encoder: tuple[int, int] | None = None  # shape of the encoder's array; None: there is none
    # Positions that a row may read of it by cross attention; 0: its rows are embeddings.
    cross_positions: int = 0
    # The replicas that run each step together; None: the step is of one. `leaves` are of all, what
    # else is said here of one.
    joined: JoinedReplicas | None = None

    @engine_context()
    def compile(self, bucket: Bucket, features: Features) -> tuple[Compiled, LedgerEntry]:
        """The executable and what it cost."""
        began = time.perf_counter()
        device = self.placement.mesh.devices.flat[0]
        options = self.choices.options(device, bucket.num_tokens)
        lowered = self.lower(bucket, features)
        compiled = first = lowered.compile(compiler_options=options)
        if self.splits:
            second = self.lower_second(bucket, features, lowered.out_info[1])
            compiled = Halves(first, second.compile(compiler_options=options))
        give_back_freed_memory()
        memory = first.memory_analysis()
        return compiled, LedgerEntry(
            bucket,
            features,
            seconds=time.perf_counter() - began,
            temp_bytes=memory.temp_size_in_bytes if memory else 0,
            code_bytes=memory.generated_code_size_in_bytes if memory else 0,
        )

    def lower(self, bucket: Bucket, features: Features) -> jax.stages.Lowered:
        """The lowered program. Its text names no devices, so it is equal for all replicas."""
        body = partial(self._body(bucket, features), program=self._program(bucket, features))
        leaves, state = self.leaves, self.state
        if self.joined is not None:
            body = self.joined.mapped(body, leaves)
            state = jax.tree.map(self.joined.shape, state)
        jitted = jax.jit(body, donate_argnums=1, out_shardings=self._kept)
        if features.adapters and self.adapters is not None:
            leaves += self.adapters.leaves
        return jitted.lower(leaves, state, self._input(bucket, features))

    def lower_second(
        self, bucket: Bucket, features: Features, half: StepOutput
    ) -> jax.stages.Lowered:
        """The lowered second half of a step whose first one has results of these shapes."""
        body = partial(second_half, program=self._program(bucket, features))
        jitted = jax.jit(body, donate_argnums=0, out_shardings=self._kept)
        logits, positions = (
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.placement.everywhere)
            for x in (half.logits, half.positions)
        )
        return jitted.lower(self.state, self._packed(bucket), logits, positions, logits)

    def _program(self, bucket: Bucket, features: Features) -> Program:
        return Program(
            bucket, features, self.shapes, self.rebuild, self._running, self.stages, self.guesser,
            self.splits, self.adapters if features.adapters else None,
        )  # fmt: skip

    @property
    def _running(self) -> Placement:
        """The placement that a step sees."""
        return self.placement if self.joined is None else self.joined.placement.in_replica()

    @property
    def _kept(self) -> tuple[Any, Any]:
        """The state keeps its shardings, so that the next step takes it as it is."""
        if self.joined is not None:
            whole = jax.tree.map(self.joined.shape, self.state)
            return jax.tree.map(lambda x: x.sharding, whole), self.joined.by_replica
        return jax.tree.map(lambda x: x.sharding, self.state), self.placement.everywhere

    def _body(self, bucket: Bucket, features: Features) -> Callable[..., Any]:
        if self.cross_positions:
            return step_across
        if features.embeds:
            return step_with_embeds
        if self.stages is not None:
            return pipeline_step
        return multi_step if bucket.is_multi_step else step

    def _input(
        self, bucket: Bucket, features: Features
    ) -> jax.ShapeDtypeStruct | EmbedsInput | MediaInput | CrossInput:
        packed, tokens = self._packed(bucket), bucket.num_tokens
        if self.cross_positions:
            assert self.encoder is not None, "cross attention reads an encoder's array"
            places = self._everywhere((self.shapes.max_rows, self.cross_positions), np.int32)
            return CrossInput(packed, self._everywhere(self.encoder, np.float32), places)
        if not features.embeds:
            return packed
        if self.encoder is None:
            rows = self._everywhere((tokens, self.hidden), np.float32)
            return EmbedsInput(packed, rows, self._everywhere((tokens,), bool))
        kept = self._everywhere(self.encoder, np.float32)
        index, planes = (self._everywhere(shape, np.int32) for shape in ((tokens,), (3, tokens)))
        return MediaInput(packed, kept, index, planes, ahead=index)

    def _everywhere(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.placement.everywhere)

    def _packed(self, bucket: Bucket) -> jax.ShapeDtypeStruct:
        """The packed input; in a pipeline, one row per stage, ending with the stage's index."""
        size = packed_size(bucket, self.shapes)
        shape = (size,) if self.stages is None else (self.placement.num_stages, size + 1)
        axes = PACKED_AXES[-len(shape) :]
        where = self.placement.sharding(axes, shape)
        packed = jax.ShapeDtypeStruct(shape, np.int32, sharding=where)
        return packed if self.joined is None else self.joined.shape(packed)
