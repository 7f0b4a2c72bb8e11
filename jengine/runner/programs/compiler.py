"""Ahead-of-time compilation of a step's programs, by size and features, from shapes alone."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from jengine.device_advice import Doing, explained
from jengine.runner.memory.freed_memory import give_back_freed_memory
from jengine.runner.programs.compiler_options import CompilerChoices
from jengine.runner.programs.ledger import LedgerEntry
from jengine.runner.step.beside import BesideInput, EmbedsInput, ImagesInput, StepGiven
from jengine.runner.step.cross_attention import CrossInput
from jengine.runner.step.draft_stage import DraftStageInput
from jengine.runner.step.heads import ChosenInput
from jengine.runner.step.hidden import Ran, SlotInput
from jengine.runner.step.joined import JoinedReplicas
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.part_functions import (
    READS_HEAD,
    body_of,
    fields_of,
    on_fields,
    outputs_of_head,
    state_fields,
)
from jengine.runner.step.pipeline_step import PACKED_AXES
from jengine.runner.step.program import AdapterProgram, DrafterProgram, Program, Stages
from jengine.runner.step.prompt_chunk import PromptChunk
from jengine.runner.step.state import StepState
from jengine.runner.step.step_input import packed_size, section_size
from jengine.runner.variants.buckets import (
    FEWEST_DECODE_ROWS,
    NO_TOKENS,
    Bucket,
    Slots,
    StepShapes,
)
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import RUNS_TOKENS, Part
from jengine.sampling.acceptance import Drafted
from sharding.jax_settings import engine_context
from sharding.placement import Placement
from sharding.shared import shared

Compiled = Any  # jax.stages.Compiled
Size = Bucket | Slots


@dataclass(frozen=True)
class StepCompiler:
    """Lowers and compiles a step's programs; needs no allocated parameters or state."""

    shapes: StepShapes
    rebuild: Callable[[Leaves], Any]
    leaves: Any  # abstract leaves, with shardings
    state: StepState  # abstract state, with shardings
    placement: Placement
    stages: Stages | None = None  # None: no pipeline
    choices: CompilerChoices = field(default_factory=CompilerChoices)
    drafter: DrafterProgram | None = None  # None: steps make no drafts
    hidden: int = 0  # width of prompt embeddings; 0: not enabled
    width: int = 0  # of hidden states
    # Whether logits processors run on the host between logits and sampling.
    splits: bool = False
    adapters: AdapterProgram | None = None  # None: no LoRA
    encoder: tuple[int, int] | None = None  # shape of the encoder's array; None: no encoder
    # Positions per row for cross attention; 0: the array's rows are embeddings.
    cross_positions: int = 0
    # The replicas of joint steps. `leaves` are then those of all replicas, everything else of one.
    joined: JoinedReplicas | None = None
    # Collects the Triton kernels of compiled programs (`KernelCall`); None: not needed.
    kernels: set[Any] | None = field(default=None, compare=False)

    @engine_context()
    def compile(
        self, size: Bucket | Slots, features: Features, *, measures: bool = True
    ) -> tuple[Compiled, LedgerEntry]:
        """Return the executable and its compile cost. `measures`: allow autotuning on the
        device."""
        began = time.perf_counter()
        compiled = shared(
            self._key(size, features), lambda: self._compiled(size, features, measures)
        )
        memory = compiled.memory_analysis()
        return compiled, LedgerEntry(
            size,
            features,
            seconds=time.perf_counter() - began,
            temp_bytes=taken_bytes(memory) if memory else 0,
            code_bytes=memory.generated_code_size_in_bytes if memory else 0,
        )

    def _key(self, size: Size, features: Features) -> Hashable | None:
        """Everything that the program depends on; None: not shared between engines."""
        if not self.placement.is_cpu or features.own_functions:
            return None
        # Without what is not part of a program: the key would keep it alive, or cannot compare it.
        placement = replace(self.placement, observe=None)
        of_all = replace(self, adapters=None, kernels=None, placement=placement)
        adapters = self.adapters if features.adapters else None
        return of_all, adapters and adapters.key, size, features

    def _compiled(self, size: Size, features: Features, measures: bool) -> Compiled:
        device = self.placement.mesh.devices.flat[0]
        options = self.choices.options(device, size.num_tokens, measures=measures)
        traced = self.trace(size, features)
        if self.kernels is not None:
            launch = importlib.import_module("pallas_kernels.launch")  # needs triton
            self.kernels.update(launch.kernel_calls(traced.jaxpr.jaxpr))
        lowered = traced.lower()
        with explained(jax.errors.JaxRuntimeError, Doing.COMPILE):
            compiled = lowered.compile(compiler_options=options)
        give_back_freed_memory()
        return compiled

    def lower(self, size: Bucket | Slots, features: Features) -> jax.stages.Lowered:
        """Lower one program. The HLO names no devices, so it is equal for all replicas."""
        return self.trace(size, features).lower()

    def trace(self, size: Bucket | Slots, features: Features) -> Any:
        """Trace one program."""
        owned, read = fields_of(self.state, *state_fields(features))
        program = self._program(size, features)
        body = on_fields(program, body_of(program))
        behind = self.adapter_leaves(features), self.tap_shapes(features)
        leaves, results = self.used(self.leaves, features, *behind), self.placement.everywhere
        shape = partial(self._everywhere, dtype=np.int32)
        if features.part in RUNS_TOKENS and isinstance(size, Bucket):
            given = self._input(size, features)
        else:
            given = GIVEN[features.part](self, size, shape)
        if self.joined is not None:
            body, results = self.joined.mapped(body, leaves), self.joined.by_replica
            owned, read, given = jax.tree.map(self.joined.shape, (owned, read, given))
        kept = jax.tree.map(lambda x: x.sharding, owned)
        jitted = jax.jit(body, donate_argnums=1, out_shardings=(kept, results))
        return jitted.trace(leaves, owned, read, given)

    def used(self, leaves: Leaves, features: Features, own: Leaves, taps: Leaves) -> Leaves:
        """The leaves that a program takes; `own`: of adapters, `taps`: of tap sets."""
        if features.part in READS_HEAD:
            of_head = own[self.adapters.of_head] if own and self.adapters is not None else ()
            return (*(leaves[place] for place in self.head_leaves), *of_head)
        return () if features.part is Part.CHOOSE else leaves + taps + own

    def adapter_leaves(self, features: Features) -> Leaves:
        """Shapes of the adapter arrays, if the program takes them."""
        return self.adapters.leaves if features.adapters and self.adapters is not None else ()

    def tap_shapes(self, features: Features) -> Any:
        """Shapes of the arrays of tap sets."""
        shapes = chain.from_iterable(taps.shapes for taps in features.taps)
        return tuple(jax.ShapeDtypeStruct(*one, sharding=self.everywhere) for one in shapes)

    @property
    def everywhere(self) -> NamedSharding:
        """Replicated sharding over all devices of a step."""
        return (self.placement if self.joined is None else self.joined.placement).everywhere

    @cached_property
    def head_leaves(self) -> tuple[int, ...]:
        """Indices of the leaves that the output head reads."""
        rows = jax.ShapeDtypeStruct((FEWEST_DECODE_ROWS, self.width), np.float32)
        # In joint steps kernels take their mesh from the context.
        whole = nullcontext() if self.joined is None else jax.set_mesh(self.joined.placement.mesh)
        own = self.model_leaves
        with whole:
            traced = jax.make_jaxpr(
                lambda leaves, rows: outputs_of_head(
                    self.rebuild(leaves), rows, staged=self.stages is not None
                )
            )(own, rows).jaxpr
        read = {id(one) for equation in traced.eqns for one in equation.invars}
        return tuple(
            place for place, one in enumerate(traced.invars[: len(own)]) if id(one) in read
        )

    @property
    def model_leaves(self) -> Any:
        """The model's own leaves, without the drafter's."""
        return self.leaves[: self._model_leaves]

    @property
    def _model_leaves(self) -> int:
        """Number of the model's own leaves; the drafter's follow."""
        return len(self.leaves) if self.drafter is None else self.drafter.first_leaf

    def _program(self, size: Bucket | Slots, features: Features) -> Program:
        reads = READS_HEAD | {Part.STEP}
        of_head = self.head_leaves if features.part in reads else ()
        bucket = size if isinstance(size, Bucket) else NO_TOKENS
        return Program(
            bucket, features, self.shapes, self.rebuild, self._running, self.stages, self.drafter,
            self.adapters if features.adapters else None, of_head, self._model_leaves,
        )  # fmt: skip

    @property
    def vocab_size(self) -> int:
        return self.state.rows.marks.shape[1]

    @property
    def _running(self) -> Placement:
        """The placement inside the step, where replicas are already mapped."""
        return self.placement if self.joined is None else self.joined.placement.in_replica()

    def _input(self, bucket: Bucket, features: Features) -> StepGiven:
        beside, tokens, shape = list[BesideInput](), bucket.num_tokens, self._everywhere
        if features.embeds and self.hidden:
            rows = shape((tokens, self.hidden), np.float32)
            beside.append(EmbedsInput(rows, shape((tokens,), bool)))
        if self.encoder is not None and (features.embeds or self.cross_positions):
            kept, index = shape(self.encoder, np.float32), shape((tokens,), np.int32)
            places = shape((self.shapes.max_rows, self.cross_positions), np.int32)
            images = ImagesInput(kept, index, shape((3, tokens), np.int32), index)
            beside.append(CrossInput(kept, places) if self.cross_positions else images)
        return StepGiven(self._packed(bucket), tuple(beside))

    def _everywhere(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.placement.everywhere)

    def _packed(self, bucket: Bucket) -> jax.ShapeDtypeStruct:
        """The packed input; in a pipeline, one row per stage, ending with the stage's index."""
        size = packed_size(bucket, self.shapes)
        shape = (size,) if self.stages is None else (self.placement.num_stages, size + 1)
        axes = PACKED_AXES[-len(shape) :]
        where = self.placement.sharding(axes, shape)
        return jax.ShapeDtypeStruct(shape, np.int32, sharding=where)


def taken_bytes(memory: Any) -> int:
    """Scratch memory of a program, plus outputs that do not alias inputs."""
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.temp_size_in_bytes + max(results, 0)


# Makes the abstract value of a replicated array.
Shape = Callable[..., Any]


def slot_input(compiler: StepCompiler, size: Size, shape: Shape) -> SlotInput:
    shapes = compiler.shapes
    count = shapes.num_slots(size) if isinstance(size, Bucket) else size.count
    most = shapes.most_drafts
    return SlotInput(
        ends=shape((count, compiler.width), dtype=np.float32),
        section=shape((section_size(count, shapes),)),
        positions=shape((count,)),
        drafts=Drafted(shape((count,)), shape((count, most))) if most else None,
        adapters=shape((count,)) if shapes.adapter_slots else None,
    )


def chosen_input(compiler: StepCompiler, size: Size, shape: Shape) -> ChosenInput:
    logits = shape((size.num_tokens, compiler.vocab_size), dtype=np.float32)
    return ChosenInput(slot_input(compiler, size, shape), logits, logits)


def draft_stage_input(compiler: StepCompiler, size: Size, shape: Shape) -> DraftStageInput:
    assert isinstance(size, Bucket) and compiler.drafter is not None, "the device drafts"
    tokens, slots = (size.num_tokens,), slot_input(compiler, size, shape)
    rows = shape((*tokens, compiler.width), dtype=np.float32)
    kept = dict.fromkeys(compiler.drafter.points, rows)
    packed = shape((packed_size(size, compiler.shapes),))
    ran = Ran(packed, shape(tokens), rows, shape(tokens), kept)
    return DraftStageInput(ran, slots, slots.positions)


def prompt_chunk(compiler: StepCompiler, size: Size, shape: Shape) -> PromptChunk:
    count = (size.num_tokens,)
    adapters = shape(count) if compiler.shapes.adapter_slots else None
    return PromptChunk(shape((1,)), shape(count), adapters)


GIVEN: dict[Part, Callable[[StepCompiler, Size, Shape], Any]] = {
    Part.SAMPLE: slot_input,
    Part.LOGITS: slot_input,
    Part.CHOOSE: chosen_input,
    Part.DRAFT: draft_stage_input,
    Part.SCORE: prompt_chunk,
    Part.POOL: slot_input,
    Part.POOL_TOKENS: prompt_chunk,
}
