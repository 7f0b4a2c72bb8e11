"""Vision tower configuration: a transformer over image patches, and its merger into embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VisionNorm = Literal["rms", "rms_one_plus", "layer"]
VisionActivation = Literal["quick_gelu", "gelu", "gelu_tanh", "silu", "relu"]


@dataclass(frozen=True)
class MergerConfig:
    """How patches of one token are merged.

    `norm_each` norms each patch, `norm_merged` the concatenated patches, `none` neither; two
    matmuls follow. `average` averages, norms and multiplies once; so does `scaled_average`, whose
    norm has no weights and follows a scale by the root of the width.
    """

    kind: Literal["norm_each", "norm_merged", "none", "average", "scaled_average"]
    side: int  # side x side patches are one token
    width: int  # of the embeddings
    inner: int = 0  # outputs of the first matmul
    activation: VisionActivation = "gelu"
    norm: VisionNorm = "layer"
    norm_eps: float = 1e-6
    bias: bool = True
    standardizes: bool = False  # whether a scaled average is shifted and scaled by vectors

    @property
    def patches(self) -> int:
        """Patches per token."""
        return self.side**2


@dataclass(frozen=True)
class VisionConfig:
    """A vision tower, and its placeholder tokens in prompts."""

    family: str  # whose rules say how images become patches, and what stands for them in prompts
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int
    merger: MergerConfig
    image_token: int  # stands for one embedding of an image
    channels: int = 3
    frames: int = 1  # of a video that are one patch
    video_token: int | None = None
    start_token: int | None = None  # stands before an image
    end_token: int | None = None
    norm: VisionNorm = "layer"
    norm_eps: float = 1e-6
    activation: VisionActivation = "quick_gelu"
    gated: bool = False  # whether feed-forward blocks are gated
    mlp_bias: bool = True
    patch_bias: bool = False
    qkv_bias: bool = True
    # Whether what attention and feed-forward block add is multiplied by a learned vector.
    layer_scales: bool = False
    # Whether blocks norm queries, keys and values, and what attention and MLP add.
    norms_inside: bool = False
    clamps: bool = False  # whether what enters and leaves their matmuls is clamped
    head_size: int | None = None  # None: the heads divide the hidden size
    # Whether the tokens before and after an image are put around what takes a placeholder's place.
    wraps: bool = False
    # What stands for an image in prompts as they are given. None: the token of its embeddings.
    placeholder_token: int | None = None
    # Tokens of one, two, ... line breaks, of which there are two on both sides of an image. Those
    # that meet become one. Empty: there are none.
    line_breaks: tuple[int, ...] = ()
    # Tokens between an image and its crops, and between these. Empty: unknown without a tokenizer.
    crop_texts: tuple[tuple[int, ...], ...] = ()
    # Whether the tokens of one image attend to each other, to later ones too.
    sees_ahead: bool = False
    # Base of the rotation by row and column of a patch. None: positions are not rotated.
    rope_theta: float | None = None
    # Side of the table of learned positions. 0: there is none.
    table_side: int = 0
    # Rows of the tables of learned columns and rows, which are added. 0: there are none.
    axis_rows: int = 0
    # Whether a learned vector stands before the patches of an image.
    class_vector: bool = False
    norm_before: bool = False  # whether what enters the first layer is normed
    norm_after: bool = False  # whether what leaves the last layer is normed
    # Layers whose patches see their whole frame; the others see a window. None: all see it.
    full_layers: tuple[int, ...] | None = None
    window: int = 0  # side of a window, in pixels
    image_size: int = 0  # side of the images of towers that take one size only
    # Tokens to which images of any size are resized, at most. None: `image_size` says it.
    soft_tokens: int | None = None
    # Tokens in whose place the language model is given `blank`, beside embeddings of their own.
    blanked: tuple[int, ...] = ()
    blank: int = 0
    # Steps in time of a second of video, for positions. 0: frames are one step apart.
    steps_per_second: int = 0
    # Whether a text before each frame of a video says when it is seen; then frames stand apart.
    times_in_text: bool = False
    # Layers after which patches are merged once more, and added to the same tokens after as many
    # first layers of the language model.
    deep_layers: tuple[int, ...] = ()
    initializer_range: float = 0.02

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads if self.head_size is None else self.head_size

    @property
    def placeholder(self) -> int:
        """Image placeholder token in given prompts."""
        return self.image_token if self.placeholder_token is None else self.placeholder_token

    @property
    def most_ahead(self) -> int:
        """Maximum number of later tokens of its image that a token attends to."""
        if not self.sees_ahead:
            return 0
        if self.soft_tokens is not None:
            return self.soft_tokens - 1
        return (self.image_size // self.patch_size // self.merger.side) ** 2 - 1

    @property
    def patch_values(self) -> int:
        """Elements of a patch."""
        return self.channels * self.frames * self.patch_size**2

    @property
    def width(self) -> int:
        """Elements of the tower's output per token."""
        return self.merger.width * (1 + len(self.deep_layers))
