"""A runner for models whose decoder attends to an encoder's output: runs the encoder for a plan's
audio before its step, and tells every step which rows of the encoder's array each row reads.
"""

from __future__ import annotations

import jax
import numpy as np

from jengine.plan import Plan
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.plans.packing import PackedStep
from jengine.runner.programs.encoders import Encoders
from jengine.runner.runner import Runner
from jengine.runner.step.across import CrossInput
from jengine.runner.variants.features import Features


class CrossRunner(Runner):
    """Keeps where rows find their encoder's output until they hold another request."""

    def __init__(self, loaded: LoadedModel, encoders: Encoders, positions: int) -> None:
        super().__init__(loaded)
        self._encoders = encoders
        self._places = np.full((loaded.shapes.max_rows, positions), -1, np.int32)
        self._on_device = self._put()

    def _needed(self, plan: Plan) -> Features:
        self._encoders.encode(self.loaded.leaves, plan.encode)
        if plan.new_rows:
            for new in plan.new_rows:
                self._places[new.row] = -1
                for span in new.media:
                    self._places[new.row, : span.length] = span.places
            self._on_device = self._put()
        return super()._needed(plan)

    def _put(self) -> jax.Array:
        return jax.device_put(self._places.copy(), self.loaded.placement.everywhere)

    def _input(self, plan: Plan, packed: PackedStep) -> CrossInput:
        return CrossInput(packed.buffer, self._encoders.rows, self._on_device)
