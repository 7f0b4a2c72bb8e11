"""A model on one replica's devices: its parameters, its step state and its compiled steps.

In: packed steps. Out: device outputs, not awaited. Of plans it knows only new rows, new blocks and
token masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jengine.counts import ProgramTotals
from jengine.device_advice import Doing, explained
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.lora.stacks import AdapterStacks
from jengine.lora.store import AdapterStore
from jengine.plan import NewRow, TokenMasks
from jengine.runner.programs.background import BackgroundWarmUp
from jengine.runner.programs.block_tables import BlockWriter
from jengine.runner.programs.late import LatePrograms
from jengine.runner.programs.programs import Found, Programs
from jengine.runner.programs.row_admission import RowAdmission
from jengine.runner.programs.token_masks import MaskWriter
from jengine.runner.report_types import ProgramCounts
from jengine.runner.sleep import Asleep, take_weights
from jengine.runner.step.leaves import LeafOrder, Leaves
from jengine.runner.step.state import StepState
from jengine.runner.variants.buckets import Ladders, StepShapes
from jengine.runner.variants.tap_sets import TapSets
from jengine.sampling.processor_sets import ProcessorSets
from jengine.sampling.raised import Raised
from sharding.jax_settings import engine_context
from sharding.mesh import steps_may_queue
from sharding.placement import Placement

if TYPE_CHECKING:
    from jengine.runner.resize import Resizing


class LoadedModel:
    """Runs compiled steps in order: each takes the state that the one before returned."""

    def __init__(
        self,
        leaves: Leaves,
        make_state: Callable[[], StepState],
        programs: Programs,
        ladders: Ladders,
        vocab_size: int,
        taps: TapSets,
        processors: ProcessorSets,
        order: LeafOrder,
        drafter_leaves: Leaves = (),
        adapters: AdapterStacks | None = None,
    ) -> None:
        self.leaves = leaves
        self.drafter_leaves = drafter_leaves
        self.adapters = adapters
        self._make_state = make_state
        # Allocated after warm-up: XLA's autotuning needs free memory, which the cache will take.
        self._state: StepState | None = None
        self.asleep = Asleep()
        self.resizing: Resizing | None = None
        # Reloads parameters from the model's folder, into the memory of the leaves given.
        self.read_weights: Callable[[Leaves | None], Leaves] | None = None
        self.programs = programs
        self.ladders = ladders
        self.vocab_size = vocab_size
        self.taps = taps
        self.processors = processors
        self.order = order
        self._admission = RowAdmission(programs.compiler, vocab_size)
        self._blocks = BlockWriter(programs.compiler)
        self._masks = MaskWriter(programs.compiler)
        self.background: BackgroundWarmUp | None = None  # compiles programs while steps run
        self.late: LatePrograms | None = None  # likewise, programs that warm-up leaves out
        self.closing: list[Callable[[], None]] = []  # called once no step runs any more
        self._may_queue = steps_may_queue(self.placement.mesh)

    @property
    def shapes(self) -> StepShapes:
        return self.programs.compiler.shapes

    @property
    def placement(self) -> Placement:
        return self.programs.compiler.placement

    @property
    def state(self) -> StepState:
        """Donated step state: KV cache and row state. Asserts that it is allocated."""
        assert self._state is not None, "the KV cache sleeps, or is not made yet"
        return self._state

    @state.setter
    def state(self, state: StepState) -> None:
        self._state = state

    def drop_state(self) -> None:
        """Free the KV cache and the row state."""
        self._state = None

    def make_state(self) -> None:
        """Allocate an empty state."""
        with explained(jax.errors.JaxRuntimeError, Doing.CACHE):
            self._state = self._make_state()

    def use_maker(self, make_state: Callable[[], StepState]) -> None:
        """Replace the program that allocates the state, after a resize."""
        self._make_state = make_state

    @property
    def adapter_store(self) -> AdapterStore:
        """The adapters in host memory. Raises UnsupportedFeature without LoRA."""
        if self.adapters is None:
            raise UnsupportedFeature("LoRA adapters: create the engine with enable_lora=True.")
        return self.adapters.store

    def run(self, found: Found, given: Any) -> Any:
        """Queue a program and return its results; blocks only where devices cannot queue steps."""
        self.state, output = found.queue(self.taken_by(found), self.state, given)
        if not self._may_queue:
            jax.block_until_ready((output, self.state.last_token))
        return output

    def taken_by(self, found: Found) -> Leaves:
        """Parameter leaves that a program takes."""
        features = found.entry.features
        stacks = self.adapters.leaves if features.adapters and self.adapters is not None else ()
        leaves, compiler = self.leaves + self.drafter_leaves, self.programs.compiler
        of_taps = [taps.operands.on(compiler.everywhere, jax.device_put) for taps in features.taps]
        return compiler.used(leaves, features, stacks, tuple(chain.from_iterable(of_taps)))

    def admit(self, new_rows: Sequence[NewRow]) -> None:
        """Queue the writes of new rows' sampler state."""
        self.state = self._admission.admit(self.state, new_rows)

    def hold_adapters(
        self, new_rows: Sequence[NewRow], before: Callable[[], None] = lambda: None
    ) -> None:
        """Queue the writes of new rows' LoRA adapters to their slots. `before` is called first if a
        slot's adapter changes."""
        stacks = self.adapters
        if stacks is None:
            return
        wanted = {new.adapter_slot: new.adapter for new in new_rows if new.adapter_slot}
        if not all(stacks.holds(*one) for one in wanted.items()):
            before()
        for slot, digest in wanted.items():
            stacks.hold(slot, digest)

    def mask(self, masks: TokenMasks | None) -> None:
        """Queue the write of a plan's grammar bitmasks."""
        if masks is not None:
            rows = self.state.rows
            rows = rows._replace(mask=self._masks.write(rows.mask, masks))
            self.state = self.state._replace(rows=rows)

    def add_blocks(self, entries: np.ndarray) -> None:
        """Queue the write of block table entries that do not fit the step's packed input."""
        if len(entries):
            assert self.state.tables is not None, "in a pipeline tables are packed"
            tables = self._blocks.write(self.state.tables, entries)
            self.state = self.state._replace(tables=tables)

    def warm_up(self, *, admission: bool) -> None:
        """Compile the small programs: block tables and, with `admission`, the sampler's state."""
        if self.state.tables is not None:
            tables = self._blocks.warm_up(self.state.tables)
            self.state = self.state._replace(tables=tables)
        if self.adapters is not None:
            self.adapters.warm_up()
        if admission:
            self.state = self._admission.warm_up(self.state)
            rows = self.state.rows
            rows = rows._replace(mask=self._masks.warm_up(rows.mask))
            self.state = self.state._replace(rows=rows)

    @engine_context()
    def parameters(self) -> dict[str, jax.Array]:
        """The declared parameters, by path; copies where a step takes another layout."""
        return self.order.values(self.leaves)

    @engine_context()
    def stored_parameters(self) -> dict[str, jax.Array]:
        """The parameters in checkpoint form: weights quantized at load stay quantized."""
        return self.order.stored(self.leaves)

    def update_parameters(self, values: Mapping[str, jax.Array]) -> None:
        """Replace the parameters; shardings must be the same. Prepared copies (where a step takes
        another layout) may overwrite the old leaves, after steps already queued."""
        take_weights(self, self.order.leaves(values.items(), into=self.leaves or None))

    def check_leaves(self) -> None:
        """Refuse to run on parameters that were donated to another computation."""
        if any(leaf.is_deleted() for leaf in self.leaves):
            raise ConfigError(
                "the engine's parameters were deleted: another computation donated them, such as a "
                "training step. Call update_params with the new ones first."
            )

    def functions_of(self, new: NewRow) -> list[Raised]:
        """Error counters of the user functions of a new row: taps and logits processors."""
        used = self.taps.raised_by(new.taps), self.processors.raised_by(new.sampling.processors)
        return [one for one in used if one is not None]

    def program_counts(self) -> ProgramCounts:
        """Numbers of programs compiled and pending."""
        return self.programs.ledger.counts

    def program_totals(self) -> ProgramTotals:
        """Compiles, and real and computed tokens of all steps."""
        return self.programs.ledger.totals

    def wait_until_warm(self, timeout: float | None = None) -> bool:
        """Wait for background warm-up; returns whether every program is compiled."""
        return self.background is None or self.background.wait(timeout)

    def close(self) -> None:
        """Stop compiling in the background, for all replicas, and run the `closing` callbacks."""
        for compiling in (self.background, self.late):
            if compiling is not None:
                compiling.stop()
        while self.closing:
            self.closing.pop()()
