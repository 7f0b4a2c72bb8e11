"""Scores text pairs: by a cross-encoder, or from embeddings of each text or of its tokens.

In: queries and documents. Out: the prompts to pool, and one score per pair. No jax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jengine.api.pooling.front import Pooling
from jengine.config import PoolingTask
from jengine.engine.pooled import normalized
from jengine.errors import RequestError
from jengine.pooling_outputs import (
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from jengine.text.chat_template import run_template
from jengine.text.tokenization import Tokenization
from jengine.text.tokenizer import Tokenizer

Outputs = Sequence[PoolingRequestOutput[PoolingOutput]]


@dataclass(frozen=True)
class PairLimits:
    """Maximum tokens of a query and of a document; 0: no limit."""

    query: int = 0
    document: int = 0


@dataclass(frozen=True)
class Pairs:
    """Queries and documents to score: equally many, or one query for all."""

    queries: list[str]
    documents: list[str]

    def query(self, index: int) -> str:
        """The query of this document."""
        return self.queries[0 if len(self.queries) == 1 else index]


class Scoring:
    """Scores of text pairs: by cross-encoder, cosine similarity or MaxSim, as the model does."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._model = pooling.model("score")
        config = self._model.config
        if config.task == "token_classify":
            raise RequestError("This model does not support the Scoring API.")
        if config.task == "classify" and config.labels != 1:
            raise RequestError("Scoring API is only enabled for num_labels == 1.")

    @property
    def task(self) -> PoolingTask:
        return self._model.config.task

    def pairs(self, data_1: Any, data_2: Any) -> Pairs:
        """Check the arguments of `score`: 1 with 1, 1 with N or N with N non-empty texts."""
        queries, documents = _texts(data_1), _texts(data_2)
        if not queries:
            raise RequestError("At least one text element must be given")
        if not documents:
            raise RequestError("At least one text_pair element must be given")
        if len(queries) not in (1, len(documents)):
            raise RequestError("Input lengths must be either 1:1, 1:N or N:N")
        return Pairs(queries, documents)

    def prompts(
        self,
        pairs: Pairs,
        how: Tokenization,
        limits: PairLimits = PairLimits(),
        template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The prompts to pool: one for each pair, or all queries and then all documents."""
        renderer = self._pooling.front.session.input_processor.prompts
        tokenizer = renderer.required_tokenizer()
        self._check(limits)
        queries = [cut_text(text, tokenizer, limits.query) for text in pairs.queries]
        documents = [cut_text(text, tokenizer, limits.document) for text in pairs.documents]
        if self.task != "classify":
            return [renderer.render(text, how) for text in (*queries, *documents)]
        cut = Pairs(queries, documents)
        found = []
        for index, document in enumerate(documents):
            query = cut.query(index)
            if template is not None:
                text = pair_text(tokenizer, template, query, document, template_kwargs)
                found.append(renderer.render(text, how))
            elif self._model.config.joins_pairs:
                found.append(renderer.render(query + document, how))
            else:
                found.append(renderer.render_pair(query, document, how))
        return found

    def outputs(self, pairs: Pairs, outputs: Outputs) -> list[ScoringRequestOutput]:
        """Score each pair from the pooled outputs."""
        if self.task == "classify":
            return [ScoringRequestOutput.from_base(one) for one in outputs]
        count = len(pairs.queries)
        queries, documents = outputs[:count], outputs[count:]
        return [
            self._scored(queries[0 if count == 1 else index], document)
            for index, document in enumerate(documents)
        ]

    def _scored(
        self,
        query: PoolingRequestOutput[PoolingOutput],
        document: PoolingRequestOutput[PoolingOutput],
    ) -> ScoringRequestOutput:
        score = max_similarity if self.task == "token_embed" else cosine
        pad = self._pooling.front.tokenizer().pad_token_id
        between = [] if pad is None else [pad]
        return ScoringRequestOutput(
            f"{query.request_id}_{document.request_id}",
            ScoringOutput(score(query.outputs.data, document.outputs.data)),
            query.prompt_token_ids + between + document.prompt_token_ids,
            query.num_cached_tokens + document.num_cached_tokens,
            finished=True,
        )

    def _check(self, limits: PairLimits) -> None:
        longest = self._pooling.front.session.input_processor.limits.max_model_len
        named = {"max_tokens_per_query": limits.query, "max_tokens_per_doc": limits.document}
        for name, value in named.items():
            if value < 0:
                raise RequestError(f"{name} must be a non-negative integer")
            if value >= longest:
                raise RequestError(f"{name} ({value}) must be less than max_model_len ({longest}).")


def _texts(given: Any) -> list[str]:
    items = [given] if isinstance(given, (str, Mapping)) else given
    if not isinstance(items, list | tuple):
        raise RequestError(f"a text is a {type(given).__name__}; expected a string or a list.")
    for item in items:
        if isinstance(item, Mapping):
            raise RequestError("MultiModalParam is not supported by this model")
        if not isinstance(item, str):
            raise RequestError(f"a text is a {type(item).__name__}; expected a string.")
    return list(items)


def cut_text(text: str, tokenizer: Tokenizer, limit: int) -> str:
    """Truncate a text to at most `limit` tokens; 0: no limit."""
    return tokenizer.beginning(text, limit) if limit else text


def pair_text(
    tokenizer: Tokenizer,
    template: str,
    query: str,
    document: str,
    variables: Mapping[str, Any] | None,
) -> str:
    """Render a pair with the model's template for scores."""
    given = dict(variables or {})
    reserved = {"chat_template", "tools", "tokenize", "conversation"} & given.keys()
    if reserved:
        raise RequestError(
            f"chat_template_kwargs has reserved keys: {', '.join(sorted(reserved))}."
        )
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    return run_template(tokenizer, messages, chat_template=template, **given)


def cosine(query: np.ndarray, document: np.ndarray) -> float:
    return float(np.dot(normalized(query), normalized(document)))


def max_similarity(query: np.ndarray, document: np.ndarray) -> float:
    """MaxSim: the sum over query tokens of their best match in the document."""
    return float((query @ document.T).max(axis=1).sum())
