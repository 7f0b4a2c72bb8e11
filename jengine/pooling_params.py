"""PoolingParams: what is wanted of a pooling model for one prompt, by vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from jengine.config import PoolingTask
from jengine.errors import RequestError
from jengine.request_parameters import Parameter, check_all, declared
from jengine.sampling_params import RequestOutputKind, SamplingParams

REMOVED_TASKS = {
    "score": "`score` task was removed; use `classify` instead.",
    "encode": "`encode` task was removed; use `token_embed` or `token_classify` instead.",
}
KNOWN_TASKS = ("embed", "classify", "token_embed", "token_classify")
# How the answer of such a request is read: it has no token and no text.
UNWRITTEN = SamplingParams(max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)


@dataclass
class PoolingParams:
    """Parameters of one prompt. None: what suits the model."""

    # Whether embeddings are normalised, and scores of classes become probabilities.
    use_activation: Annotated[bool | None, Parameter()] = None
    # Of embeddings, for models made for fewer ones (Matryoshka).
    dimensions: Annotated[int | None, Parameter()] = None
    # Rewards of steps: the token at which a step ends, and the outputs that are returned.
    step_tag_id: Annotated[int | None, Parameter()] = None
    returned_token_ids: list[int] | None = None
    task: PoolingTask | None = None
    skip_reading_prefix_cache: Annotated[bool | None, Parameter()] = None
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY

    def __post_init__(self) -> None:
        if self.task in REMOVED_TASKS:
            raise RequestError(REMOVED_TASKS[self.task])
        if self.task is not None and self.task not in KNOWN_TASKS:
            raise RequestError(f"task={self.task!r}: expected one of {', '.join(KNOWN_TASKS)}.")
        if self.output_kind is not RequestOutputKind.FINAL_ONLY:
            raise RequestError(
                f"For pooling output_kind has to be FINAL_ONLY, got {self.output_kind!r}"
            )
        check_all(PARAMETERS, self)

    def clone(self) -> PoolingParams:
        """A copy."""
        return replace(self)

    @property
    def reading(self) -> SamplingParams:
        """The parameters that apply to the output's text: a pooled result has none."""
        return UNWRITTEN


PARAMETERS = declared(PoolingParams)
