"""Speech encoder configuration: a transformer over log-mel frames, read by cross attention."""

from __future__ import annotations

from dataclasses import dataclass

from jengine.config.vision import VisionActivation


@dataclass(frozen=True)
class SpeechConfig:
    """Whisper's encoder and its audio preprocessing. Two convolutions come first, the second
    halving the frames. Audio is padded with silence to a fixed number of positions."""

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
        return self.hidden_size // self.num_heads

    @property
    def frames(self) -> int:
        """Spectrogram frames."""
        return 2 * self.positions

    @property
    def samples(self) -> int:
        """Maximum samples per request."""
        return self.frames * self.hop
