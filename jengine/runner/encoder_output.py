"""An encoder's output, to which decoders attend: the encoder runs for a plan's audio before its
step, and every step is told which rows of the encoder's array each row reads.

Audio is read by cross attention. An encoder-decoder model (Whisper) has an encoder's program that
turns the spectrogram, made on the host (`media/log_mel.py`), into keys and values of every decoder
layer. They are written once, to rows of the same array that holds embeddings of images, found by
content, and given out by the same cache and gate; a span of audio is read until its request ends.
Every step brings where each row's positions are, and a layer with `LayerConfig.cross` reads them
without a mask (`runner/step/across.py`). Hashes of blocks know the audio, as they know images. On a
mesh both parts share heads and columns, and every device has the whole array; pipelines are
refused. An encoder of text (BART, `models/text_encoder.py`) is the same with token ids in place of
a spectrogram: what a user writes is its prompt (`engine/source_renderer.py`), and one run takes
several texts (`runner/step/texts.py`). That of T5 is made of the decoder's own layers
(`models/text_stack.py`). Both add a learned number of each head to scores by how far key and query
lie apart: the numbers of buckets become a table by distance (`layers/distance_bias.py`), which the
paged attention of XLA takes as data; steps of other kernels attend in XLA there, as with slopes
(`pallas_kernels/choice.py`).
"""

from __future__ import annotations

import jax
import numpy as np

from jengine.plan import Plan
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.plans.packing import PackedStep
from jengine.runner.programs.encoders import Encoders
from jengine.runner.step.across import CrossInput


class EncoderOutput:
    """Keeps where rows find their encoder's output until they hold another request."""

    def __init__(self, loaded: LoadedModel, encoders: Encoders, positions: int) -> None:
        self._loaded = loaded
        self._encoders = encoders
        self._places = np.full((loaded.shapes.max_rows, positions), -1, np.int32)
        self._on_device = self._put()

    def take(self, plan: Plan) -> bool:
        """Take up the plan's audio or texts and its rows. No token comes as an embedding."""
        self._encoders.encode(self._loaded.leaves, plan.encode)
        if plan.new_rows:
            for new in plan.new_rows:
                self._places[new.row] = -1
                for span in new.media:
                    self._places[new.row, : span.length] = span.places
            self._on_device = self._put()
        return False

    def _put(self) -> jax.Array:
        return jax.device_put(self._places.copy(), self._loaded.placement.everywhere)

    def beside(self, plan: Plan, packed: PackedStep) -> CrossInput:
        """The packed plan, with the encoder's array."""
        return CrossInput(packed.buffer, self._encoders.rows, self._on_device)
