"""POST /v1/embeddings, /pooling and /classify."""

from __future__ import annotations

import base64
import sys
from typing import Any, cast

import ml_dtypes
import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from jengine.config import PoolingTask
from jengine.engine.pooling_input import VALID
from jengine.errors import RequestError
from jengine.pooling_params import REMOVED_TASKS
from jengine.server.errors import ApiError
from jengine.server.http.body import read_body
from jengine.server.pooling.fields import (
    ClassifyRequest,
    EmbeddingRequest,
    EncodedFields,
    PoolingRequest,
)
from jengine.server.pooling.jobs import InputJob, Pooled, pooling_input, require
from jengine.server.pooling.types import ClassData, EmbeddingData, PoolingData, PromptUsage
from jengine.server.serving.generation import answer
from jengine.server.serving.service import Service


async def embeddings(service: Service, http: Request) -> Response:
    """Embed each input."""
    strict = service.settings.strict_requests
    request = await read_body(http, EmbeddingRequest, strict=strict)
    request.check_encoding()
    require(service, "embed", "/v1/embeddings")
    return await encoded_answer(service, http, EmbeddingJob(service, http, request, "embed"))


async def pooling(service: Service, http: Request) -> Response:
    """Pool each input by the model's task."""
    request = await read_body(http, PoolingRequest, strict=service.settings.strict_requests)
    request.check_encoding()
    if request.dimensions is not None:
        raise ApiError(400, "dimensions is currently not supported", param="dimensions")
    if request.task in REMOVED_TASKS:
        raise ApiError(400, REMOVED_TASKS[request.task], param="task")
    own = pooling_input(service)
    task = own.config.task if request.task is None else request.task
    if task not in VALID:
        raise ApiError(400, f"task={task!r}: expected one of {', '.join(VALID)}.", param="task")
    try:
        own.check_task(cast(PoolingTask, task))
    except RequestError as error:
        raise ApiError(400, str(error), param="task") from error
    job = PoolJob(service, http, request, cast(PoolingTask, task))
    return await encoded_answer(service, http, job)


async def classify(service: Service, http: Request) -> Response:
    """Classify each input."""
    request = await read_body(http, ClassifyRequest, strict=service.settings.strict_requests)
    require(service, "classify", "/classify")
    return await answer(service, http, ClassifyJob(service, http, request, "classify"))


class EncodedJob(InputJob):
    """A pooling job whose numbers may be returned as binary data."""

    def numbers(self, pooled: Pooled) -> Response:
        """A response with the rows of all inputs as concatenated bytes, described by a header."""
        request = cast(EncodedFields, self.request)
        parts = [raw_bytes(one.outputs.data, request) for one in pooled]
        if request.encoding_format == "bytes_only":
            return Response(b"".join(parts), media_type="application/octet-stream")
        items, start = [], 0
        for index, (one, part) in enumerate(zip(pooled, parts, strict=True)):
            items.append({
                "index": index,
                "embed_dtype": request.embed_dtype or "float32",
                "endianness": request.endianness or "native",
                "start": start,
                "end": start + len(part),
                "shape": one.outputs.data.shape,
            })  # fmt: skip
            start += len(part)
        told = {
            "id": self.request_id,
            "created": self.created,
            "model": self.model,
            "data": items,
            "usage": PromptUsage.of(self.usage(pooled)),
        }
        headers = {"metadata": msgspec.json.encode(told).decode()}
        return Response(b"".join(parts), media_type="application/octet-stream", headers=headers)


class EmbeddingJob(EncodedJob):
    prefix = "embd"

    def item(self, index: int, data: np.ndarray) -> EmbeddingData:
        request = cast(EmbeddingRequest, self.request)
        return EmbeddingData(index=index, embedding=encoded(data, request))


class PoolJob(EncodedJob):
    """A /pooling request."""

    prefix = "pooling"

    def item(self, index: int, data: np.ndarray) -> PoolingData:
        """One vector, or one per token."""
        return PoolingData(index=index, data=encoded(data, cast(PoolingRequest, self.request)))


class ClassifyJob(InputJob):
    prefix = "classify"

    def item(self, index: int, data: np.ndarray) -> ClassData:
        """Class probabilities of an input, with the argmax label."""
        best, names = int(np.argmax(data)), self.pooling.model("classify").config.label_names
        return ClassData(
            index=index,
            label=names[best] if best < len(names) else None,
            probs=data.tolist(),
            num_classes=len(data),
        )


async def encoded_answer(service: Service, http: Request, job: EncodedJob) -> Response:
    """Run a job and return its response, in JSON or binary."""
    as_bytes = cast(EncodedFields, job.request).encoding_format in ("bytes", "bytes_only")
    if not as_bytes:
        return await answer(service, http, job)
    return await answer(service, http, job, lambda outputs: job.numbers(job.pooled(outputs)))


DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}


def raw_bytes(data: np.ndarray, request: EncodedFields) -> bytes:
    """Cast to the requested dtype and byte order."""
    found = np.ascontiguousarray(data.astype(DTYPES[request.embed_dtype or "float32"]))
    wanted = request.endianness or "native"
    if wanted in ("native", sys.byteorder) or found.itemsize == 1:
        return found.tobytes()
    return found.view(f"u{found.itemsize}").byteswap().tobytes()


def encoded(data: np.ndarray, request: EncodedFields) -> list[Any] | str:
    """Encode numbers for JSON: a list, or base64."""
    if request.encoding_format == "base64":
        return base64.b64encode(raw_bytes(data, request)).decode("ascii")
    return data.tolist()
