"""Validates parameters of pooling requests against the model.

All errors of a request are raised here, before any part of it is queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jengine.config import PoolingConfig, PoolingTask
from jengine.config.pooling import TOKEN_TASKS
from jengine.errors import RequestError
from jengine.plan import POOLED_AS, RowSampling
from jengine.pooling_params import PoolingParams
from jengine.prompts import TokensPrompt

VALID = {
    "embed": ("dimensions", "use_activation"),
    "classify": ("use_activation",),
    "token_embed": ("dimensions", "use_activation"),
    "token_classify": ("use_activation",),
}
OF_STEPS = ("step_tag_id", "returned_token_ids")


class PoolingInput:
    """Checks and completes parameters for one model. `name`: the API's name in messages."""

    def __init__(self, config: PoolingConfig, width: int, vocab_size: int, name: str) -> None:
        self.config = config
        self.width = width  # of the model's embeddings
        self._vocab_size = vocab_size
        self._name = name

    def own_params(self, params: PoolingParams) -> PoolingParams:
        """A copy of the parameters with the model's defaults filled in. Raises RequestError."""
        task = params.task or self.config.task
        self.check_task(task)
        params = replace(params, task=task)
        self._check_names(params, task)
        if task in ("embed", "token_embed"):
            if params.dimensions is None:
                params.dimensions = self.config.dimensions
            self._check_dimensions(params.dimensions)
        if params.use_activation is None:
            own = self.config.use_activation
            params.use_activation = True if own is None else own
        if self.config.tokens == "STEP":
            if params.step_tag_id is None:
                params.step_tag_id = self.config.step_tag_id
            params.returned_token_ids = list(
                params.returned_token_ids or self.config.returned_token_ids
            )
        return params

    def check_task(self, task: PoolingTask) -> None:
        """Raise RequestError unless the model supports this task."""
        config = self.config
        if task in config.tasks and task == config.task:
            return
        if task in config.tasks:
            raise RequestError(
                f'Try switching the model\'s pooling_task via `PoolerConfig(task="{task}")`'
            )
        if task in ("embed", "token_embed"):
            raise RequestError(
                "Embedding API is not supported by this model. "
                "Try converting the model using `--convert embed`."
            )
        if config.tasks == ("embed", "token_embed"):
            raise RequestError(
                "Classification API is not supported by this model. "
                "Try converting the model using `--convert classify`."
            )
        raise RequestError(f"Unsupported task: {task!r} Supported tasks: {config.tasks}")

    def sampling(self, params: PoolingParams) -> RowSampling:
        """Row settings of a pooling request: whether to pool per token or per sequence."""
        return RowSampling(
            pools=POOLED_AS.index("tokens" if params.task in TOKEN_TASKS else "vectors")
        )

    def typed_ids(self, prompt: TokensPrompt) -> list[int]:
        """Prompt ids with token types encoded: id + type * vocab_size."""
        ids, types = prompt["prompt_token_ids"], prompt.get("token_type_ids")
        if types is None:
            return ids
        return [one + kind * self._vocab_size for one, kind in zip(ids, types, strict=True)]

    def plain_ids(self, ids: Sequence[int]) -> list[int]:
        """Decode ids from `typed_ids`."""
        return [one % self._vocab_size for one in ids]

    def runs_every_token(self, params: PoolingParams) -> bool:
        """Whether the request may not skip tokens found in the prefix cache."""
        return self.config.needs_every_token or bool(params.skip_reading_prefix_cache)

    def _check_names(self, params: PoolingParams, task: PoolingTask) -> None:
        valid = [*VALID[task], *(OF_STEPS if self.config.tokens == "STEP" else ())]
        names = ("dimensions", "use_activation", *OF_STEPS)
        invalid = [
            name for name in names if name not in valid and getattr(params, name) is not None
        ]
        if invalid:
            raise RequestError(
                f"Task {task!r} only supports {valid} parameters, does not support {invalid} "
                "parameters"
            )

    def _check_dimensions(self, dimensions: int | None) -> None:
        config = self.config
        if dimensions is None:
            return
        if not config.matryoshka:
            raise RequestError(
                f"Model {self._name!r} does not support Matryoshka embeddings; dimensions must be "
                f"unset (received dimensions={dimensions})."
            )
        if not 1 <= dimensions <= self.width:
            raise RequestError(
                f"Model {self._name!r} only supports dimensions in range [1, {self.width}], got "
                f"{dimensions}."
            )
        if config.matryoshka_dimensions and dimensions not in config.matryoshka_dimensions:
            raise RequestError(
                f"Model {self._name!r} only supports Matryoshka dimensions "
                f"{list(config.matryoshka_dimensions)}, got {dimensions}."
            )
