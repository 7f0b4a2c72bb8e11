"""POST /score and /rerank: relevance of documents to queries."""

from __future__ import annotations

from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from jengine.api.pooling.front import Pooling
from jengine.api.pooling.scoring import PairLimits, Pairs, Scoring
from jengine.errors import RequestError
from jengine.pooling_outputs import ScoringRequestOutput
from jengine.server.errors import ApiError
from jengine.server.http.body import read_body
from jengine.server.pooling.fields import RerankRequest, ScoreRequest, ScoringFields
from jengine.server.pooling.jobs import Pooled, PoolingJob
from jengine.server.pooling.types import (
    ListResponse,
    PromptUsage,
    RankedDocument,
    RankedItem,
    RankResponse,
    ScoreData,
)
from jengine.server.serving.generation import answer
from jengine.server.serving.service import Service


async def score(service: Service, http: Request) -> Response:
    """Score each pair of texts."""
    request = await read_body(http, ScoreRequest, strict=service.settings.strict_requests)
    scoring = scoring_of(service, "/score")
    first, second = request.sides
    pairs = scoring.pairs(first, second)
    return await answer(service, http, ScoreJob(service, http, request, scoring, pairs))


async def rerank(service: Service, http: Request) -> Response:
    """Rank documents by relevance to a query."""
    request = await read_body(http, RerankRequest, strict=service.settings.strict_requests)
    scoring = scoring_of(service, "/rerank")
    for name in ("query", "documents"):
        if getattr(request, name) is None:
            raise ApiError(400, f"{name} is missing.", param=name)
    if not isinstance(request.query, str):
        raise ApiError(400, "query: expected a text.", param="query")
    if request.top_n is not None and request.top_n < 0:
        raise ApiError(400, f"top_n={request.top_n}: expected 0 or more.", param="top_n")
    pairs = scoring.pairs(request.query, request.documents)
    return await answer(service, http, RerankJob(service, http, request, scoring, pairs))


def scoring_of(service: Service, path: str) -> Scoring:
    """Return the model's scorer. Raises ApiError 404 if it cannot score pairs."""
    try:
        return Scoring(Pooling(service.check_serving().front, "server"))
    except RequestError as error:
        raise ApiError(404, f"{path}: {error}") from error


class PairsJob(PoolingJob):
    """A request that scores pairs of texts."""

    prefix = "score"

    def __init__(
        self, service: Service, http: Request, request: ScoringFields, scoring: Scoring,
        pairs: Pairs,
    ) -> None:  # fmt: skip
        self.scoring, self.pairs = scoring, pairs
        most = service.settings.max_prompts
        if len(pairs.documents) > most:
            raise ApiError(
                400,
                f"{len(pairs.documents)} documents; at most {most} are allowed in one request.",
                param="documents",
            )
        super().__init__(service, http, request, scoring.task)

    def count(self) -> int:
        """Number of prompts: one per pair (cross-encoder) or per text (bi-encoder)."""
        alone = self.scoring.task != "classify"
        return len(self.pairs.documents) + (len(self.pairs.queries) if alone else 0)

    def prompts(self) -> list[Any]:
        """Joint prompts of pairs, or single texts for a bi-encoder."""
        request = cast(ScoringFields, self.request)
        limits = PairLimits(request.max_tokens_per_query or 0, request.max_tokens_per_doc or 0)
        template = self.service.live.engine.args.chat_template
        return self.scoring.prompts(
            self.pairs, request.tokenization(), limits,
            None if template is None else str(template), request.template_kwargs,
        )  # fmt: skip

    def scored(self, pooled: Pooled) -> list[ScoringRequestOutput]:
        """Relevance score of each pair."""
        return self.scoring.outputs(self.pairs, pooled)


class ScoreJob(PairsJob):
    def body(self, pooled: Pooled) -> ListResponse:
        scores = self.scored(pooled)
        data = [ScoreData(index=index, score=one.outputs.score) for index, one in enumerate(scores)]
        return self.listed(pooled, data)


class RerankJob(PairsJob):
    def body(self, pooled: Pooled) -> RankResponse:
        """Documents by descending score, at most top_n."""
        scores = self.scored(pooled)
        results = [
            RankedItem(
                index=index, document=RankedDocument(text=text), relevance_score=one.outputs.score
            )
            for index, (text, one) in enumerate(zip(self.pairs.documents, scores, strict=True))
        ]
        results.sort(key=lambda item: item.relevance_score, reverse=True)
        top = cast(RerankRequest, self.request).top_n or len(results)
        return RankResponse(
            id=self.request_id, model=self.model, usage=PromptUsage.of(self.usage(pooled)),
            results=results[:top],
        )  # fmt: skip
