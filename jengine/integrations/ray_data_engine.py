"""The engine's stage of a Ray Data processor: each actor of its pool has an engine.

In: rows with a prompt and its parameters. Out: the rows with the columns of `ray.data.llm`. If its
engine has died an actor ends, so that Ray starts another one and repeats its batches there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from ray.llm._internal.batch.stages.base import StatefulStage, StatefulStageUDF

from jengine.adapters import LoRARequest
from jengine.api.arguments import final_only
from jengine.api.async_llm import AsyncLLM
from jengine.errors import EngineDead, RequestError
from jengine.integrations.ray_actor import RayMetrics
from jengine.integrations.ray_data_text import Row, plain
from jengine.outputs import CompletionOutput, RequestOutput
from jengine.pooling_params import PoolingParams
from jengine.sampling_params import SamplingParams
from jengine.structured_outputs import StructuredOutputsParams

logger = logging.getLogger(__name__)
# What an engine has to be for a task, and the task of its pooling parameters.
SETTINGS: dict[str, dict[str, str]] = {
    "generate": {"runner": "generate"},
    "embed": {"runner": "pooling", "convert": "embed"},
    "classify": {"runner": "pooling", "convert": "classify"},
    "score": {"runner": "pooling", "convert": "classify"},
}
# Columns of a row that has failed.
FAILED: dict[str, Any] = {
    "prompt_token_ids": None, "num_input_tokens": 0, "generated_tokens": [], "generated_text": "",
    "num_generated_tokens": 0, "answers": None, "embeddings": None, "metrics": None,
    "logprobs": None, "prompt_logprobs": None, "request_id": -1, "time_taken_llm": -1.0,
    "params": "",
}  # fmt: skip
SHOWN_PROMPT = 500
ERROR = "__inference_error__"


class EngineStep(StatefulStageUDF):
    """An engine, and rows that it answers."""

    def __init__(
        self,
        data_column: str,
        expected_input_keys: list[str],
        model: str,
        engine_kwargs: Mapping[str, Any],
        task_type: str,
        max_pending_requests: int | None,
        lora_folder: str | None,
        should_continue_on_error: bool,
        log_engine_metrics: bool,
        detokenizes_later: bool,
    ) -> None:
        super().__init__(data_column, expected_input_keys)
        self.model, self.task = model, task_type
        self.lora_folder, self.adapters = lora_folder, dict[str, LoRARequest]()
        self.continues = should_continue_on_error
        self.llm = AsyncLLM(model, **{**SETTINGS[task_type], **engine_kwargs})
        # Ray bounds what is here, and rows that wait are admitted in the step in which others end.
        most = max_pending_requests or 0
        self.seats = asyncio.Semaphore(most) if most > 0 else nullcontext()
        self.detokenizes_later = detokenizes_later
        self.metrics = RayMetrics(self.llm.engine) if log_engine_metrics else None
        self.count = 0

    async def udf(self, rows: list[Row]) -> AsyncIterator[Row]:
        """Ray's interface of stages: rows as they are answered."""
        batch = uuid.uuid4().hex
        for answer in asyncio.as_completed([self.answered(row) for row in rows]):
            yield {**await answer, "batch_uuid": batch}
        if self.metrics is not None:
            self.metrics.publish()

    async def answered(self, row: Row) -> Row:
        """The columns of an answer, or of an error if the processor goes on after errors."""
        index = {self.IDX_IN_BATCH_COLUMN: row[self.IDX_IN_BATCH_COLUMN]}
        try:
            return {**index, **await self.asked(row), ERROR: ""}
        except EngineDead:
            # An error would be repeated in this actor, for good. Ray starts an actor again whose
            # process has ended, and repeats what it had.
            logger.exception("The engine has stopped: this actor ends.")
            os._exit(1)
        except Exception as error:
            if not self.continues:
                raise
            logger.warning("A row has failed: %s", error)
            prompt = str(row.get("prompt", ""))[:SHOWN_PROMPT]
            return {
                **index, **FAILED, "prompt": prompt, ERROR: f"{type(error).__name__}: {error}",
            }  # fmt: skip

    async def asked(self, row: Row) -> Row:
        """Ask the engine."""
        self.count += 1
        number, prompt, adapter = self.count, prompt_of(row), self.adapter(row)
        name = f"row-{number}"
        began = time.perf_counter()
        async with self.seats:
            if self.task == "generate":
                params: Any = final_only(sampling_params(row))
                if self.detokenizes_later and needs_no_text(params):
                    params = params.settled(detokenize=False)
                stream: Any = self.llm.generate(prompt, params, name, lora_request=adapter)
            else:
                params = pooling_params(row, self.task)
                stream = self.llm.encode(prompt, params, name, lora_request=adapter)
            output = [one async for one in stream][-1]
        if getattr(output, "error", None):
            raise RequestError(output.error)
        return {
            **columns(output),
            "prompt": row.get("prompt") or "",
            "request_id": number,
            "time_taken_llm": time.perf_counter() - began,
            "params": str(params),
        }

    def adapter(self, row: Row) -> LoRARequest | None:
        """The adapter that the column `model` names: a folder below the configured one, else a
        folder or a name of the Hub."""
        name = row.get("model")
        if name is None or name == self.model:
            return None
        if name not in self.adapters:
            path = name if self.lora_folder is None else str(Path(self.lora_folder) / name)
            self.adapters[name] = LoRARequest(name, len(self.adapters) + 1, path)
        return self.adapters[name]


class EngineStage(StatefulStage):
    fn: type[StatefulStageUDF] = EngineStep

    def get_required_input_keys(self) -> dict[str, str]:
        """Columns that it reads."""
        generates = self.fn_constructor_kwargs["task_type"] == "generate"
        return {"sampling_params": "Arguments of SamplingParams."} if generates else {}

    def get_optional_input_keys(self) -> dict[str, str]:
        """Columns that it may read."""
        return {
            "prompt": "The text of the prompt, unless tokenized_prompt is given.",
            "tokenized_prompt": "Tokens of the prompt.",
            "pooling_params": "Arguments of PoolingParams.",
            "model": "An adapter's name, if it is not the model itself.",
            "multimodal_data": "multi_modal_data of the prompt.",
            "mm_processor_kwargs": "Options of the model's image processor.",
            "token_type_ids": "Of tokenized_prompt, for models that read pairs of texts.",
        }


def prompt_of(row: Row) -> dict[str, Any]:
    """A row's prompt as LLM.generate takes it."""
    tokens = row.get("tokenized_prompt")
    prompt: dict[str, Any] = (
        {"prompt": row["prompt"]} if tokens is None else {"prompt_token_ids": plain(tokens)}
    )
    for column, name in (
        ("multimodal_data", "multi_modal_data"),
        ("mm_processor_kwargs", "mm_processor_kwargs"),
        ("token_type_ids", "token_type_ids"),
    ):
        if row.get(column) is not None:
            prompt[name] = plain(row[column])
    return prompt


def sampling_params(row: Row) -> SamplingParams:
    given = given_in(row["sampling_params"])
    structured = given.pop("structured_outputs", None)
    if structured is not None:
        given["structured_outputs"] = StructuredOutputsParams(**given_in(structured))
    return SamplingParams(**given)


def needs_no_text(params: SamplingParams) -> bool:
    """Whether token ids suffice, so that the engine need not detokenize."""
    scored = params.logprobs is not None or params.prompt_logprobs is not None
    return params.n == 1 and not params.stop and not scored


def pooling_params(row: Row, task: str) -> PoolingParams:
    task = SETTINGS[task]["convert"]
    return PoolingParams(**given_in(row.get("pooling_params") or {}), task=task)  # type: ignore[arg-type]


def given_in(params: Mapping[str, Any]) -> dict[str, Any]:
    """Non-empty parameters of a row. A Ray Data column has all keys that any row has: missing
    values are None or NaN, and integers beside them are floats."""
    given = {name: one for name, one in plain(params).items() if one is not None and one == one}
    return {
        name: int(one) if isinstance(one, float) and one.is_integer() else one
        for name, one in given.items()
    }


def columns(output: Any) -> Row:
    """Columns of an output, named as those of vLLM's stage."""
    tokens = list(output.prompt_token_ids)
    told: Row = {**FAILED, "prompt_token_ids": tokens, "num_input_tokens": len(tokens)}
    if not isinstance(output, RequestOutput):
        return {**told, "embeddings": np.asarray(output.outputs.data, np.float32)}
    answers, prompt_scores = [answer_of(one) for one in output.outputs], output.prompt_logprobs
    return {
        **told,
        **answers[0],
        "answers": answers if len(answers) > 1 else None,
        "metrics": dataclasses.asdict(output.metrics),
        "prompt_logprobs": None if prompt_scores is None else [table(one) for one in prompt_scores],
    }


def answer_of(answer: CompletionOutput) -> Row:
    """Columns of one of the answers to a prompt."""
    scores = answer.logprobs
    return {
        "generated_tokens": list(answer.token_ids),
        "generated_text": answer.text,
        "num_generated_tokens": len(answer.token_ids),
        "logprobs": None if scores is None else [table(one) for one in scores],
    }


def table(scores: Any) -> dict[int, dict[str, Any]] | None:
    """A position's log-probabilities by token."""
    if scores is None:
        return None
    return {token: dataclasses.asdict(one) for token, one in scores.items()}
