"""An encoder of speech as data: a transformer over the frames of a log-mel spectrogram. Every layer
of a decoder attends to its output.
"""

from __future__ import annotations

from dataclasses import dataclass

from jengine.config.vision import VisionActivation


@dataclass(frozen=True)
class SpeechConfig:
    """The encoder of Whisper, and how audio becomes what it reads.

    Two convolutions come first, the second of which halves the number of frames. Every request has
    the same number of positions: shorter audio is filled up with silence.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    mels: int  # numbers of a frame
    positions: int  # of the output, half as many as frames
    start_token: int  # with which the decoder's prompt begins
    activation: VisionActivation = "gelu"
    sampling_rate: int = 16000
    window: int = 400  # samples of a frame
    hop: int = 160  # samples from one frame to the next
    # As every transformer of this kind has it; see `models.vision_tower.BlockConfig`.
    gated: bool = False
    mlp_bias: bool = True
    qkv_bias: bool = True
    layer_scales: bool = False
    full_layers: tuple[int, ...] | None = None

    @property
    def head_dim(self) -> int:
        """Numbers of a head."""
        return self.hidden_size // self.num_heads

    @property
    def frames(self) -> int:
        """Frames of the spectrogram."""
        return 2 * self.positions

    @property
    def samples(self) -> int:
        """Samples of the longest audio of one request."""
        return self.frames * self.hop
