"""A runner whose steps are split in two, with logits processors of the host in between.

The first half of a step is the model, up to the logits; the second half samples. `submit` waits for
the logits, so the host computes nothing beside the first half: that is what such processors cost,
beside two transfers of the logits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jengine.outputs import StepOutput
from jengine.plan import Plan
from jengine.runner.host_processors import HostProcessors
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.plans.packing import PackedStep
from jengine.runner.runner import Runner


class SplitRunner(Runner):
    """Runs each plan in two programs."""

    def __init__(self, loaded: LoadedModel, processors: HostProcessors) -> None:
        super().__init__(loaded)
        self._processors = processors
        self._last: tuple[PackedStep, StepOutput] | None = None  # whose tokens were not read yet

    def _run(self, plan: Plan, packed: PackedStep, program: Any, *, adapters: bool) -> StepOutput:
        loaded = self.loaded
        half = loaded.run(program.first, packed.buffer, adapters=adapters)
        # The logits follow from the tokens of the step before, so these are there as well.
        logits = np.array(half.logits)
        if self._last is not None:
            before, output = self._last
            self._processors.read(np.asarray(output.tokens)[before.slots])
        slots = packed.slots
        changed = self._processors.apply(plan, logits[slots], self._rows.settings["temperature"])
        logits[slots] = changed
        output = loaded.finish(program.second, packed.buffer, half, logits)
        self._last = packed, output
        return half._replace(
            tokens=output.tokens, logprobs=output.logprobs, logits=None, positions=None
        )
