"""Outputs of pooling models, with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from jengine.errors import RequestError

O = TypeVar("O")  # noqa: E741 - an output


@dataclass
class PoolingOutput:
    """Result of `LLM.encode` and `LLM.reward`: f32 [size], or [tokens, size] per token."""

    data: np.ndarray

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PoolingOutput) and np.array_equal(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]


@dataclass
class EmbeddingOutput:
    """Result of `LLM.embed` for a prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)

    @classmethod
    def of(cls, data: np.ndarray) -> EmbeddingOutput:
        if data.ndim != 1:
            raise RequestError("pooled_data should be a 1-D embedding vector")
        return cls(data.tolist())

    def __repr__(self) -> str:
        return f"EmbeddingOutput(hidden_size={self.hidden_size})"


@dataclass
class ClassificationOutput:
    """Result of `LLM.classify` for a prompt: a probability per class, or a raw score with
    `use_activation=False`."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)

    @classmethod
    def of(cls, data: np.ndarray) -> ClassificationOutput:
        if data.ndim != 1:
            raise RequestError("pooled_data should be a 1-D probability vector")
        return cls(data.tolist())

    def __repr__(self) -> str:
        return f"ClassificationOutput(num_classes={self.num_classes})"


@dataclass
class ScoringOutput:
    """Result of `LLM.score` for a pair of texts: their relevance."""

    score: float

    @classmethod
    def of(cls, data: np.ndarray) -> ScoringOutput:
        if data.size != 1:
            raise RequestError("pooled_data should be a scalar score")
        return cls(float(data.reshape(())))

    def __repr__(self) -> str:
        return f"ScoringOutput(score={self.score})"


@dataclass
class PoolingRequestOutput(Generic[O]):
    """The result for one prompt of a pooling call.

    Attributes:
        request_id: The request's id.
        outputs: The result; its class depends on the call.
        prompt_token_ids: The prompt as token ids.
        num_cached_tokens: Prompt tokens that the prefix cache had.
        finished: Always true: pooling does not stream.
    """

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
        return cls(
            base.request_id, outputs, base.prompt_token_ids, base.num_cached_tokens, base.finished
        )


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """A result of `LLM.embed`."""

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> EmbeddingRequestOutput:
        return cls.with_outputs(base, EmbeddingOutput.of(base.outputs.data))


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """A result of `LLM.classify`."""

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> ClassificationRequestOutput:
        return cls.with_outputs(base, ClassificationOutput.of(base.outputs.data))


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """A result of `LLM.score`."""

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> ScoringRequestOutput:
        return cls.with_outputs(base, ScoringOutput.of(base.outputs.data))
