"""PoolingParams: parameters of one pooling prompt, with vLLM's names."""

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
# Sampling parameters of pooling requests: no tokens, no text.
UNWRITTEN = SamplingParams(max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)


@dataclass
class PoolingParams:
    """Parameters of one pooling prompt. None: the model's default."""

    # Whether to normalise embeddings, and turn class scores into probabilities.
    use_activation: Annotated[bool | None, Parameter()] = None
    # Embedding size, for Matryoshka models.
    dimensions: Annotated[int | None, Parameter()] = None
    # Step rewards: the token that ends a step, and the outputs to return.
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
        return replace(self)

    @property
    def reading(self) -> SamplingParams:
        """The parameters that apply to the output's text: a pooled result has none."""
        return UNWRITTEN


PARAMETERS = declared(PoolingParams)
