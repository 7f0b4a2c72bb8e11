"""Cross-attention (encoder-decoder models): runs the encoder before a plan's step, and maps each
engine row to the rows of the encoder's array that it reads.

An encoder program turns audio (Whisper: a spectrogram made in `media/speech.py`) or text into keys
and values of every decoder layer. They are written once, to an array like that of image embeddings:
keyed by content, with the same cache and admission gate, and kept until the request ends.
A layer with `LayerConfig.cross` reads them without a mask (`runner/step/cross_attention.py`). Block
hashes include the encoder's input, as they do images. On a mesh heads and columns are sharded in
both parts, and every device has the whole array; pipelines are refused.

Text encoders (BART, `models/text_encoder.py`) take token ids: the user's prompt
(`engine/source_renderer.py`). One run takes several texts (`runner/step/text_packing.py`). T5's
encoder consists of the decoder's own layers (`models/text_stack.py`); both its parts add a learned
bias per head and distance to the scores (`layers/distance_bias.py`), which only XLA's paged
attention takes: steps of other backends attend in XLA there (`pallas_kernels/choice.py`).
"""

from __future__ import annotations

import jax
import numpy as np

from jengine.plan import Plan
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.plans.packing import PackedStep
from jengine.runner.programs.encoders import Encoders
from jengine.runner.step.cross_attention import CrossInput
from sharding.placement import put


class EncoderOutput:
    """Tracks where each row's encoder output is, until the row gets another request."""

    in_every_step = True

    def __init__(self, loaded: LoadedModel, encoders: Encoders, positions: int) -> None:
        self._loaded = loaded
        self._encoders = encoders
        self._places = np.full((loaded.shapes.max_rows, positions), -1, np.int32)
        self._on_device = self._put()

    def take(self, plan: Plan) -> bool:
        """Encode the plan's audio or texts, and map its new rows. Returns False: no embeddings."""
        self._encoders.encode(self._loaded.leaves, plan.encode)
        if plan.new_rows:
            for new in plan.new_rows:
                self._places[new.row] = -1
                for span in new.media:
                    self._places[new.row, : span.length] = span.places
            self._on_device = self._put()
        return False

    def _put(self) -> jax.Array:
        return put(self._places.copy(), self._loaded.placement.everywhere)

    def beside(self, plan: Plan, packed: PackedStep) -> CrossInput:
        """The encoder's array and each row's positions in it."""
        return CrossInput(self._encoders.rows, self._on_device)
