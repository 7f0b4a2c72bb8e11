"""POST /v2/embed: Cohere's embedding API.

`input_type` chooses a prefix, such as for queries or passages, that the model's files define.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from jengine.request_parameters import Amount, Texts
from jengine.server.errors import ApiError
from jengine.server.formats.field_ranges import Priority
from jengine.server.http.body import read_body
from jengine.server.pooling.fields import EmbeddingRequest
from jengine.server.pooling.jobs import Pooled, PoolingJob, require
from jengine.server.serving.generation import answer
from jengine.server.serving.service import Service
from jengine.text.chat_template import render_chat

TRUNCATIONS = ("NONE", "START", "END")
Truncate = Annotated[str, Meta(extra_json_schema={"enum": list(TRUNCATIONS)})]


class EmbedRequest(msgspec.Struct, kw_only=True):
    """The body of POST /v2/embed. null means unset."""

    model: str | None = None
    input_type: str | None = None
    texts: Texts | None = None
    images: list[str] | None = None
    inputs: list[dict[str, Any]] | None = None
    output_dimension: Amount | None = None
    embedding_types: list[str] | None = None
    truncate: Truncate | None = None
    max_tokens: Amount | None = None
    priority: Priority | None = None

    def checked(self) -> EmbeddingRequest:
        """Convert to the equivalent request of OpenAI's API, without the inputs."""
        given = [one for one in (self.texts, self.images, self.inputs) if one is not None]
        if len(given) != 1 or not given[0]:
            raise ApiError(
                400,
                "Exactly one of texts, images, or inputs must be provided, and it must be "
                "non-empty.",
                param="texts",
            )
        if self.images is not None:
            raise ApiError(400, "images: this model embeds texts only.", param="images")
        if self.truncate not in (None, *TRUNCATIONS):
            expected = ", ".join(TRUNCATIONS)
            raise ApiError(
                400, f"truncate={self.truncate!r}: expected one of {expected}.", param="truncate"
            )
        if self.max_tokens == 0:
            raise ApiError(400, "max_tokens=0: expected at least 1.", param="max_tokens")
        for name in self.embedding_types or ():
            if name not in TYPES:
                raise ApiError(
                    400,
                    f"embedding_types has {name!r}: expected some of {', '.join(TYPES)}.",
                    param="embedding_types",
                )
        cuts = self.truncate != "NONE"
        return EmbeddingRequest(
            model=self.model,
            priority=self.priority,
            dimensions=self.output_dimension,
            truncate_prompt_tokens=(self.max_tokens or -1) if cuts else None,
            truncation_side="left" if self.truncate == "START" else None,
        )


class Billed(msgspec.Struct):
    """Cohere's `billed_units`."""

    input_tokens: int
    image_tokens: int = 0


class Told(msgspec.Struct):
    """Cohere's `meta`."""

    billed_units: Billed
    api_version: dict[str, str] = msgspec.field(default_factory=lambda: {"version": "2"})


class EmbedResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Embeddings by requested type."""

    id: str
    embeddings: dict[str, list[Any]]
    texts: list[str] | None = None
    meta: Told
    response_type: str


async def embed(service: Service, http: Request) -> Response:
    """The embedding of each text."""
    given = await read_body(http, EmbedRequest, strict=service.settings.strict_requests)
    require(service, "embed", "/v2/embed")
    return await answer(service, http, EmbedJob(service, http, given))


class EmbedJob(PoolingJob):
    """A /v2/embed request."""

    prefix = "embd"

    def __init__(self, service: Service, http: Request, given: EmbedRequest) -> None:
        self.asked = given
        super().__init__(service, http, given.checked(), "embed")
        self.given = given
        self.before = self._named_prompt()

    def count(self) -> int:
        """Number of prompts: one per text or per list of content parts."""
        found = self.asked.texts or self.asked.inputs or []
        most = self.service.settings.max_prompts
        if len(found) > most:
            raise ApiError(
                400, f"{len(found)} texts; at most {most} are allowed in one request.",
                param="texts",
            )  # fmt: skip
        return len(found)

    def prompts(self) -> list[Any]:
        """Texts with the model's prefix prepended. With a chat template, conversations whose system
        message is the prefix."""
        rendering, how = self.service.live.rendering, self.request.tokenization()
        if self.asked.inputs is not None:
            talks = [self._conversation(parts_of(one)) for one in self.asked.inputs]
            return [rendering.conversation(one, how) for one in talks]
        texts = self.asked.texts or []
        if self.before and self._has_template():
            talks = [self._conversation([{"type": "text", "text": one}]) for one in texts]
            return [rendering.conversation(one, how) for one in talks]
        return [rendering.prompt(self.before + one, how) for one in texts]

    def body(self, pooled: Pooled) -> EmbedResponse:
        """Embeddings of all prompts, in every requested type."""
        self._check_lengths(pooled)
        rows = [one.outputs.data for one in pooled]
        return EmbedResponse(
            id=self.request_id,
            embeddings={
                name: TYPES[name](rows) for name in self.asked.embedding_types or ("float",)
            },
            texts=self.asked.texts,
            meta=Told(Billed(self.usage(pooled).prompt_tokens)),
            response_type="embeddings_by_type",
        )

    def _named_prompt(self) -> str:
        wanted, known = self.asked.input_type, dict(self.pooling.model("embed").config.prompts)
        if wanted is None:
            return ""
        if wanted not in known:
            told = f"Supported values: {', '.join(sorted(known))}." if known else (
                "This model does not define any input_type task instructions."
            )  # fmt: skip
            raise ApiError(400, f"Unsupported input_type {wanted!r}. {told}", param="input_type")
        return known[wanted]

    def _has_template(self) -> bool:
        live = self.service.live
        return live.engine.args.chat_template is not None or bool(
            live.rendering.tokenizer.hf.chat_template
        )

    def _conversation(self, parts: list[dict[str, Any]]) -> str:
        live = self.service.live
        template = live.engine.args.chat_template
        system = {"role": "system", "content": [{"type": "text", "text": self.before}]}
        messages = [system] if self.before else []
        return render_chat(
            live.rendering.tokenizer,
            [*messages, {"role": "user", "content": parts}],
            chat_template=None if template is None else str(template),
            add_generation_prompt=False,
        )

    def _check_lengths(self, pooled: Pooled) -> None:
        """With truncate="NONE", refuse texts that exceed the maximum length."""
        most = self.asked.max_tokens
        if most is None or self.asked.truncate != "NONE":
            return
        longest = max(len(one.prompt_token_ids) for one in pooled)
        if longest > most:
            raise ApiError(
                400,
                f"Input of {longest} tokens exceeds max_tokens={most} with truncate=NONE. Set "
                "truncate to END or START to allow truncation.",
                param="max_tokens",
            )


def parts_of(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Text parts of one item of `inputs`."""
    parts = given.get("content")
    if not isinstance(parts, list) or not parts:
        raise ApiError(400, "inputs: expected objects with a list as content.", param="inputs")
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or "text" not in part:
            raise ApiError(
                400, "inputs: this model embeds texts only; expected parts of type text.",
                param="inputs",
            )  # fmt: skip
    return parts


def bits(rows: list[np.ndarray], lowest: int) -> list[list[int]]:
    """Pack the signs of 8 numbers into a byte (1: >= 0); `lowest` is added to each byte."""
    matrix = np.stack(rows)
    if matrix.shape[1] % 8:
        raise ApiError(
            400,
            "Embedding dimension must be a multiple of 8 for binary embedding types, but got "
            f"{matrix.shape[1]}.",
            param="embedding_types",
        )
    return (np.packbits(matrix >= 0, axis=-1).astype(np.int16) + lowest).tolist()


TYPES: dict[str, Callable[[list[np.ndarray]], list[Any]]] = {
    "float": lambda rows: [row.tolist() for row in rows],
    "binary": lambda rows: bits(rows, -128),
    "ubinary": lambda rows: bits(rows, 0),
    "base64": lambda rows: [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows],
}
