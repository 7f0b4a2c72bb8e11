"""What pooling models return, by vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from jengine.errors import RequestError

O = TypeVar("O")  # noqa: E741 - an output


@dataclass
class PoolingOutput:
    """A pooled result: one row, or one per token."""

    data: np.ndarray  # f32

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PoolingOutput) and np.array_equal(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]


@dataclass
class EmbeddingOutput:
    """The embedding of a prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)

    @classmethod
    def of(cls, data: np.ndarray) -> EmbeddingOutput:
        """The embedding in one row."""
        if data.ndim != 1:
            raise RequestError("pooled_data should be a 1-D embedding vector")
        return cls(data.tolist())

    def __repr__(self) -> str:
        return f"EmbeddingOutput(hidden_size={self.hidden_size})"


@dataclass
class ClassificationOutput:
    """The probability of each class, or its score without an activation."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.probs)

    @classmethod
    def of(cls, data: np.ndarray) -> ClassificationOutput:
        """The probabilities in one row."""
        if data.ndim != 1:
            raise RequestError("pooled_data should be a 1-D probability vector")
        return cls(data.tolist())

    def __repr__(self) -> str:
        return f"ClassificationOutput(num_classes={self.num_classes})"


@dataclass
class ScoringOutput:
    """A relevance score of two texts."""

    score: float

    @classmethod
    def of(cls, data: np.ndarray) -> ScoringOutput:
        """The only number of a row."""
        if data.size != 1:
            raise RequestError("pooled_data should be a scalar score")
        return cls(float(data.reshape(())))

    def __repr__(self) -> str:
        return f"ScoringOutput(score={self.score})"


@dataclass
class PoolingRequestOutput(Generic[O]):
    """A prompt and what a pooling model made of it."""

    request_id: str
    outputs: O
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(request_id={self.request_id!r}, outputs={self.outputs!r}, "
            f"prompt_token_ids={self.prompt_token_ids}, "
            f"num_cached_tokens={self.num_cached_tokens}, finished={self.finished})"
        )

    @classmethod
    def with_outputs(cls, base: PoolingRequestOutput[PoolingOutput], outputs: Any) -> Any:
        """Copy with other outputs."""
        return cls(
            base.request_id, outputs, base.prompt_token_ids, base.num_cached_tokens, base.finished
        )


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """A prompt and its embedding."""

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> EmbeddingRequestOutput:
        """The embedding that was pooled."""
        return cls.with_outputs(base, EmbeddingOutput.of(base.outputs.data))


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """A prompt and its classes."""

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> ClassificationRequestOutput:
        """The classes that were pooled."""
        return cls.with_outputs(base, ClassificationOutput.of(base.outputs.data))


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """Two texts and how well they fit."""

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> ScoringRequestOutput:
        """The score that was pooled."""
        return cls.with_outputs(base, ScoringOutput.of(base.outputs.data))
