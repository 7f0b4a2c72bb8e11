"""Sampling with logits processors that run on the host (vLLM's classes, `logits_processor.py`).

The output head and the sampler are separate programs then. The host waits for the logits, processes
them and queues the sampler, so a step costs two transfers of the logits, and no host work overlaps
with the model. Since the host waits, it has all earlier tokens, and the scheduler needs no support.
In a pipeline processors run for the plan that leaves the last stage.
"""

from __future__ import annotations

import numpy as np

from jengine.outputs import StepOutput
from jengine.plan import Plan
from jengine.runner.host_processors import HostProcessors
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.plans.packing import PackedStep
from jengine.runner.programs.programs import Found
from jengine.runner.step.heads import ChosenInput
from jengine.runner.step.hidden import Forwarded
from jengine.runner.variants.parts import Part


class HostSampling:
    """Samples from logits that host processors have changed."""

    def __init__(self, loaded: LoadedModel, processors: HostProcessors) -> None:
        self._loaded = loaded
        self._processors = processors
        self._last: tuple[PackedStep, StepOutput] | None = None  # step whose tokens are not read

    def __call__(
        self,
        plan: Plan,
        packed: PackedStep,
        parts: dict[Part, Found],
        forwarded: Forwarded,
    ) -> StepOutput:
        """Wait for the logits, process them, queue the sampler."""
        own = self._loaded.run(parts[Part.LOGITS], forwarded.slots)
        # Waits. The previous step's tokens, an input of these logits, are ready too.
        logits = np.array(own)
        if self._last is not None:
            (before, output), self._last = self._last, None
            self._processors.read(np.asarray(output.tokens)[before.slots])
        slots = packed.slots
        logits[slots] = self._processors.apply(plan, logits[slots])
        chosen = self._loaded.run(parts[Part.CHOOSE], ChosenInput(forwarded.slots, own, logits))
        self._last = packed, chosen
        return chosen
