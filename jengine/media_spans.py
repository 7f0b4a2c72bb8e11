"""Spans of images and videos in a prompt, with the encoder's inputs. Audio, and text for an
encoder, are encoder inputs beside the prompt, to which every token of the request cross-attends.

Plain data, so that spans travel in requests and plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

MediaKind = Literal["image", "video", "audio", "text"]
BESIDE = ("audio", "text")  # encoder inputs beside the prompt
FOREVER = 2**31 - 1


class MediaSpan(msgspec.Struct, frozen=True, array_like=True):
    """Prompt tokens replaced by an image's or video's embeddings; or audio or encoder text beside
    the prompt."""

    offset: int  # of the first token
    length: int  # tokens; for audio and encoder text, positions of the encoder's output
    key: str  # digest of everything that the embeddings depend on
    kind: MediaKind
    grid: tuple[int, int, int]  # frames, rows and columns of patches
    # Frames, rows and columns of tokens, for MRoPE positions.
    steps: tuple[int, int, int]
    interval: float = 1.0  # MRoPE positions per frame
    # f32[patches, patch size], or i32[tokens] of text; omitted in the plan's new rows
    values: bytes = b""
    rows: bytes = b""  # i32[length]: rows of the device's embedding array; empty: unread
    is_whole: bool = False  # bidirectional attention inside: one step must run all of it

    @property
    def end(self) -> int:
        """Position after the last token that reads it."""
        return FOREVER if self.kind in BESIDE else self.offset + self.length

    @property
    def places(self) -> np.ndarray:
        """i32[length]: rows of the device's embedding array."""
        return np.frombuffer(self.rows, np.int32)

    @property
    def without_values(self) -> MediaSpan:
        """Copy without the encoder's inputs."""
        return msgspec.structs.replace(self, values=b"")


def end_beside_images(spans: Sequence[MediaSpan], start: int, end: int, most: int) -> int:
    """End of a chunk from `start` so that no span that must run whole is cut: at most `end`, or
    up to `most` to complete a span. Returns `start` if the chunk must wait."""
    for span in spans:
        if span.is_whole and span.offset < end < span.end:
            if span.offset > start:
                return span.offset
            return span.end if span.end <= most else start
    return end


def mrope_positions(spans: Sequence[MediaSpan], length: int) -> np.ndarray:
    """MRoPE positions i32[3, length]: frame, row and column of each token.

    For text all three are equal and increase by one; after an image they continue from its largest.
    """
    positions = np.empty((3, max(length, spans[-1].end if spans else 0)), np.int32)
    end = position = 0
    for span in spans:
        text = max(span.offset - end, 0)
        positions[:, end : end + text] = position + np.arange(text)
        position += text
        frames, rows, columns = np.indices(span.steps).reshape(3, -1)
        times = (frames.astype(np.float32) * np.float32(span.interval)).astype(np.int32)
        within = np.stack([times, rows, columns])
        positions[:, span.offset : span.end] = position + within
        position += int(within.max()) + 1
        end = span.end
    positions[:, end:] = position + np.arange(positions.shape[1] - end)
    return positions[:, :length]


def offset_after(spans: Sequence[MediaSpan]) -> int:
    """MRoPE position minus token position after all spans."""
    end = spans[-1].end if spans else 0
    return int(mrope_positions(spans, end + 1)[0, -1]) - end
