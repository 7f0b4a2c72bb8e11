"""Pooling calls of `LLM`: embeddings, classification, scores and rewards of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jengine.api.answering import Progress
from jengine.api.arguments import Loras, refuse_others
from jengine.api.offline import OfflineEngine
from jengine.api.pooling.front import NO_TASK, Pooling, with_truncation
from jengine.api.pooling.scoring import Scoring
from jengine.config import PoolingTask
from jengine.errors import RequestError
from jengine.pooling_outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from jengine.pooling_params import PoolingParams
from jengine.text.tokenization import checked_tokenization

Pools = PoolingParams | Sequence[PoolingParams] | None


class PoolingEngine(OfflineEngine):
    """An offline engine with calls for pooling models."""

    @property
    def _pooling(self) -> Pooling:
        return Pooling(self._front, type(self).__name__)

    def encode(
        self,
        prompts: Any,
        pooling_params: Pools = None,
        *,
        use_tqdm: Progress = None,
        lora_request: Loras = None,
        pooling_task: PoolingTask | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        truncate_prompt_tokens: int | None = None,
        **others: Any,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Pool prompts: return one vector per prompt, or one per token.

        `pooling_task` is embed, classify, token_embed or token_classify. Prompts and their options
        are those of `generate`.
        """
        refuse_others("encode", others)
        pooling = self._pooling
        pooling.model("encode")
        if pooling_task is None:
            raise RequestError(NO_TASK)
        options = with_truncation(tokenization_kwargs, truncate_prompt_tokens)
        given = pooling.prompts(prompts, options)
        params = pooling.params(pooling_task, pooling_params, len(given))
        outputs = self._answering.answer(given, params, use_tqdm, lora_request=lora_request)
        return [pooling.output(one, own) for one, own in zip(outputs, params, strict=True)]

    def embed(
        self, prompts: Any, *, pooling_params: Pools = None, **options: Any
    ) -> list[EmbeddingRequestOutput]:
        """The embedding of each prompt; options as for `encode`."""
        found = self.encode(prompts, pooling_params, pooling_task="embed", **options)
        return [EmbeddingRequestOutput.from_base(one) for one in found]

    def classify(
        self, prompts: Any, *, pooling_params: Pools = None, **options: Any
    ) -> list[ClassificationRequestOutput]:
        """Class probabilities of each prompt; options as for `encode`."""
        found = self.encode(prompts, pooling_params, pooling_task="classify", **options)
        return [ClassificationRequestOutput.from_base(one) for one in found]

    def score(
        self,
        data_1: Any,
        data_2: Any,
        /,
        *,
        use_tqdm: Progress = None,
        pooling_params: PoolingParams | None = None,
        lora_request: Loras = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[ScoringRequestOutput]:
        """Relevance scores of text pairs: 1 with 1, 1 with N, or N with N.

        Cross-encoders and rerankers read both texts of a pair. Other models: cosine similarity of
        embeddings, or the sum over the first text's tokens of their best match (ColBERT).
        """
        pooling = self._pooling
        scoring = Scoring(pooling)
        pairs = scoring.pairs(data_1, data_2)
        how = checked_tokenization(with_truncation(tokenization_kwargs, truncate_prompt_tokens))
        prompts = scoring.prompts(pairs, how, template=chat_template)
        params = pooling.params(scoring.task, pooling_params, len(prompts))
        outputs = self._answering.answer(prompts, params, use_tqdm, lora_request=lora_request)
        pooled = [pooling.output(one, own) for one, own in zip(outputs, params, strict=True)]
        return scoring.outputs(pairs, pooled)

    def reward(
        self, prompts: Any, *, pooling_params: Pools = None, **options: Any
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Rewards of each prompt: one per prompt, step or token, by the model; options as for
        `encode`."""
        tasks = self._pooling.model("reward").config
        task: PoolingTask = "classify" if tasks.task == "classify" else "token_classify"
        return self.encode(prompts, pooling_params, pooling_task=task, **options)
