"""The bodies of responses of pooling models."""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.server.formats.usage import Usage


class EmbeddingData(msgspec.Struct, kw_only=True):
    """The embedding of one input."""

    index: int
    object: str = "embedding"
    embedding: list[float] | str


class PoolingData(msgspec.Struct, kw_only=True):
    """What one input was pooled to."""

    index: int
    object: str = "pooling"
    data: list[Any] | str


class ListResponse(msgspec.Struct, kw_only=True):
    """One item for each input."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Any]
    usage: Usage


class ClassData(msgspec.Struct, kw_only=True):
    """The classes of one input, and the likeliest one."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ScoreData(msgspec.Struct, kw_only=True):
    """The score of one pair."""

    index: int
    object: str = "score"
    score: float


class RankedDocument(msgspec.Struct, kw_only=True):
    """A document as it was given."""

    text: str | None = None
    multi_modal: None = None


class RankedItem(msgspec.Struct, kw_only=True):
    """One document of a ranking."""

    index: int
    document: RankedDocument
    relevance_score: float


class RankUsage(msgspec.Struct):
    """The tokens of a ranking."""

    prompt_tokens: int
    total_tokens: int


class RankResponse(msgspec.Struct, kw_only=True):
    """Documents, the best first."""

    id: str
    model: str
    usage: RankUsage
    results: list[RankedItem]
