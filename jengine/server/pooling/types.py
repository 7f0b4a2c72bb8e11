"""Response bodies of pooling models."""

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
    """Pooled result of one input."""

    index: int
    object: str = "pooling"
    data: list[Any] | str


class ListResponse(msgspec.Struct, kw_only=True):
    """OpenAI's list object: one item per input."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Any]
    usage: Usage


class ClassData(msgspec.Struct, kw_only=True):
    """Class probabilities of one input, with the argmax label."""

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
    """The document's text, as given."""

    text: str | None = None
    multi_modal: None = None


class RankedItem(msgspec.Struct, kw_only=True):
    """A document's index and relevance score."""

    index: int
    document: RankedDocument
    relevance_score: float


class PromptUsage(msgspec.Struct):
    """Token counts where no text is generated."""

    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> PromptUsage:
        """Drop the counts of generated tokens."""
        return cls(usage.prompt_tokens, usage.total_tokens)


class RankResponse(msgspec.Struct, kw_only=True):
    """Documents by descending score."""

    id: str
    model: str
    usage: PromptUsage
    results: list[RankedItem]
