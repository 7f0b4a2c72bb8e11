"""Pooling requests shared by LLM, AsyncLLM and the server. No jax.

In: prompts, task and parameters. Out: validated parameters, and vLLM's outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jengine.api.arguments import as_list, spread
from jengine.api.front import Front
from jengine.config import PoolingTask
from jengine.engine.pooled import finished
from jengine.engine.pooling_input import PoolingInput
from jengine.errors import RequestError
from jengine.outputs import RequestOutput
from jengine.pooling_outputs import PoolingOutput, PoolingRequestOutput
from jengine.pooling_params import PoolingParams

NO_TASK = """pooling_task required for `LLM.encode`.
Please use one of the more specific methods or set the pooling_task when using `LLM.encode`:
  - For embeddings, use `LLM.embed(...)` or `pooling_task="embed"`.
  - For classification logits, use `LLM.classify(...)` or `pooling_task="classify"`.
  - For similarity scores, use `LLM.score(...)`.
  - For rewards, use `LLM.reward(...)` or `pooling_task="token_classify"`.
  - For token classification, use `pooling_task="token_classify"`.
  - For multi-vector retrieval, use `pooling_task="token_embed"`."""


class Pooling:
    """Pooling requests of one LLM or AsyncLLM, called `owner` in errors."""

    def __init__(self, front: Front, owner: str) -> None:
        self.front = front
        self._owner = owner

    def model(self, method: str) -> PoolingInput:
        """The checker of pooling parameters; RequestError if the model generates text."""
        found = self.front.session.input_processor.pooling
        if found is None:
            raise RequestError(
                f"{self._owner}.{method}() is only supported for pooling models. Try passing "
                "`--runner pooling` to use the model as a pooling model."
            )
        return found

    def params(
        self, task: PoolingTask, given: PoolingParams | Sequence[PoolingParams] | None, count: int
    ) -> list[PoolingParams]:
        """Validated parameters per prompt for this task."""
        self.model("encode").check_task(task)
        return [self._for_task(one, task) for one in spread("pooling_params", given, count)]

    def _for_task(self, given: PoolingParams | None, task: PoolingTask) -> PoolingParams:
        if given is None:
            return PoolingParams(task=task)
        if not isinstance(given, PoolingParams):
            raise RequestError(
                f"pooling_params is a {type(given).__name__}; expected PoolingParams."
            )
        if given.task not in (None, task):
            raise RequestError(f"You cannot overwrite params.task={given.task!r} with {task!r}!")
        params = given.clone()
        params.task = task
        return params

    def prompts(self, given: Any, tokenization_kwargs: Mapping[str, Any] | None) -> list[Any]:
        """Prompts as a list, tokenized if there are tokenization options."""
        found = as_list(self.front.tokenized(given, tokenization_kwargs))
        if not found:
            raise RequestError("You must pass at least one prompt")
        return found

    def output(
        self, output: RequestOutput, params: PoolingParams
    ) -> PoolingRequestOutput[PoolingOutput]:
        """The pooled array of a finished request; raises if the request failed."""
        if output.pooled is None or output.error is not None:
            raise RequestError(output.error or f"request {output.request_id} was aborted.")
        own = self.model("encode")
        ids = own.plain_ids(output.prompt_token_ids)
        data = finished(output.pooled, own.own_params(params), own.config, ids)
        return PoolingRequestOutput(
            output.request_id, PoolingOutput(data), ids, output.num_cached_tokens, finished=True
        )  # fmt: skip


def with_truncation(
    tokenization_kwargs: Mapping[str, Any] | None, truncate_prompt_tokens: int | None
) -> Mapping[str, Any] | None:
    """Merge vLLM's older `truncate_prompt_tokens` argument into the tokenization options."""
    if truncate_prompt_tokens is None:
        return tokenization_kwargs
    return {**(tokenization_kwargs or {}), "truncate_prompt_tokens": truncate_prompt_tokens}
