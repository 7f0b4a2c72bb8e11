"""PoolingParams: what is wanted of a pooling model for one prompt, by vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jengine.config import PoolingTask
from jengine.errors import RequestError
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
    use_activation: bool | None = None
    dimensions: int | None = None  # of embeddings, for models made for fewer ones (Matryoshka)
    # Rewards of steps: the token at which a step ends, and the outputs that are returned.
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: PoolingTask | None = None
    skip_reading_prefix_cache: bool | None = None
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
        for name in ("use_activation", "skip_reading_prefix_cache"):
            if not isinstance(getattr(self, name), bool | None):
                raise RequestError(f"{name}={getattr(self, name)!r}: expected True or False.")
        for name in ("dimensions", "step_tag_id"):
            if type(getattr(self, name)) not in (int, type(None)):
                raise RequestError(f"{name}={getattr(self, name)!r}: expected an integer.")

    def clone(self) -> PoolingParams:
        """A copy."""
        return replace(self)

    @property
    def reading(self) -> SamplingParams:
        """How the answer is read."""
        return UNWRITTEN
