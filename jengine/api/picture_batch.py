"""Prompts with pictures as training arrays, without an engine.

In: token ids with placeholders, and pictures. Out: padded arrays for `model.score`, preprocessed as
by an engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import msgspec
import numpy as np

from jengine.assembly.front_side import AROUND_IMAGES
from jengine.config import VisionConfig
from jengine.errors import RequestError, UnsupportedFeature
from jengine.media.processor import MediaProcessor
from jengine.media_spans import MediaSpan, mrope_positions
from jengine.models.language_model import LanguageModel
from jengine.models.vision_language import Pictures, VisionDecoder
from jengine.runner.step.patches import PatchPacker

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32


class PictureBatch(NamedTuple):
    """Sequences of equal length. `model.score(batch.tokens, batch.pictures)` are their logits."""

    tokens: Int32[np.ndarray, "batch length"]  # padded with 0
    lengths: Int32[np.ndarray, " batch"]
    pictures: Pictures


def picture_batch(
    model: LanguageModel,
    prompts: Sequence[tuple[Sequence[int], Sequence[Any]]],
    *,
    settings: Mapping[str, Any] | None = None,
    length: int | None = None,
) -> PictureBatch:
    """Read prompts with pictures as an engine does, as arrays to train on.

    Args:
        model: A module with a vision tower, of `load_model`, `from_hf` or `from_config`.
        prompts: Token ids with a placeholder for each picture, and the pictures, of each sequence.
        settings: The contents of preprocessor_config.json.
        length: Padded length in tokens; None: that of the longest sequence.

    Returns:
        A batch in which each placeholder has become as many tokens as there are embeddings.

    Raises:
        RequestError: There is no prompt, not a placeholder for each picture, or a sequence is
            longer than `length`.
        UnsupportedFeature: The model reads no pictures, or not in causal order.
    """
    vision = vision_of(model)
    if not prompts:
        raise RequestError("picture_batch: prompts are empty; expected (token ids, pictures).")
    processor = MediaProcessor(vision, settings or {})
    read = [processor.expanded(list(ids), {"image": list(given)}) for ids, given in prompts]
    lengths = np.array([len(ids) for ids, _ in read], np.int32)
    longest = int(lengths.max())
    length = longest if length is None else length
    if length < longest:
        raise RequestError(
            f"picture_batch: length={length}, but a sequence has {longest} tokens with those of its"
            " pictures."
        )
    packer = PatchPacker(vision)
    size = max(sum(map(packer.places_taken, spans)) for _, spans in read)
    packed = [packer.pack(list(map(placed, spans)), size, length) for _, spans in read]
    pictures = Pictures(
        jax.tree.map(lambda *each: np.stack(each), *(one.given for one in packed)),
        np.stack([one.rows for one in packed]),
        np.stack([mrope_positions(spans, length) for _, spans in read], axis=1),
    )
    tokens = np.zeros((len(read), length), np.int32)
    for row, (ids, _) in zip(tokens, read, strict=True):
        row[: len(ids)] = ids
    return PictureBatch(tokens, lengths, pictures)


def vision_of(model: LanguageModel) -> VisionConfig:
    """A model's vision config. Raises UnsupportedFeature if it reads no pictures, or not as whole
    causal sequences."""
    vision = model.config.vision if isinstance(model, VisionDecoder) else None
    if vision is None or vision.sees_ahead or vision.family in AROUND_IMAGES:
        raise UnsupportedFeature(
            f"picture_batch: {model.config.architecture} reads no pictures, or its pictures' tokens"
            " see ahead or need texts around them, which is not built. Qwen-VL, LLaVA and the small"
            " Gemma 4 do."
        )
    return vision


def placed(span: MediaSpan) -> MediaSpan:
    """The span with its embeddings placed at its tokens' positions."""
    return msgspec.structs.replace(
        span, rows=np.arange(span.offset, span.offset + span.length, dtype=np.int32).tobytes()
    )
