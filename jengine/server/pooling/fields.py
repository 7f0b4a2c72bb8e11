"""Fields of pooling requests, and the checks that all endpoints share."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from jengine.request_parameters import AmountOrNone, Text
from jengine.server.errors import ApiError
from jengine.server.formats.field_ranges import (
    Priority,
    RequestId,
    Salt,
    Side,
)
from jengine.server.formats.inputs import one_kind
from jengine.server.settings import ServerSettings
from jengine.text.tokenization import Tokenization, checked_tokenization

# As `Prompt`, or one or several conversations.
Input = (
    Text
    | Annotated[
        list[int | str | list[Any] | dict[str, Any]],
        Meta(
            extra_json_schema={
                "minItems": 1,
                "anyOf": [
                    {"items": {"type": "string", "minLength": 1}},
                    {"items": {"type": "integer", "minimum": 0}},
                    {"items": {"type": "array", "minItems": 1}},
                ],
            }
        ),
    ]
)
# One or several texts; objects are multimodal inputs.
Texts = str | dict[str, Any] | list[str | dict[str, Any]]
ENCODINGS = ("float", "base64", "bytes", "bytes_only")
DTYPES = ("float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2")
ENDIANNESS = ("native", "big", "little")
PADDINGS = ("max_length", "do_not_pad")


class PoolingFields(msgspec.Struct, kw_only=True):
    """Fields of all pooling requests; null means unset."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Side | None = None
    padding: str | None = None
    request_id: RequestId | None = None
    priority: Priority | None = None
    cache_salt: Salt | None = None
    use_activation: bool | None = None
    normalize: bool | None = None  # refused: vLLM has removed it

    def tokenization(self, *, add_special_tokens: bool | None = None) -> Tokenization:
        """Tokenizer options (special tokens, truncation)."""
        given = {
            "add_special_tokens": add_special_tokens,
            "truncate_prompt_tokens": self.truncate_prompt_tokens,
            "truncation_side": self.truncation_side,
            "padding": self.padding,
        }
        return checked_tokenization({name: one for name, one in given.items() if one is not None})


class InputFields(PoolingFields, kw_only=True):
    """`input` (texts or token ids) or `messages` (a conversation)."""

    input: Input | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class EncodedFields(InputFields, kw_only=True):
    """Fields that choose encoding, dtype and byte order of the result."""

    encoding_format: str | None = None
    embed_dtype: str | None = None
    endianness: str | None = None
    dimensions: int | None = None

    def check_encoding(self) -> None:
        """Raise ApiError for unknown encodings or dtypes."""
        for name, known in (
            ("encoding_format", ENCODINGS), ("embed_dtype", DTYPES), ("endianness", ENDIANNESS),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ApiError(
                    400, f"{name}={value!r}: expected one of {', '.join(known)}.", param=name
                )


class EmbeddingRequest(EncodedFields, kw_only=True):
    """The body of POST /v1/embeddings."""


class PoolingRequest(EncodedFields, kw_only=True):
    """The body of POST /pooling."""

    task: str | None = None


class ClassifyRequest(InputFields, kw_only=True):
    """The body of POST /classify."""


class ScoringFields(PoolingFields, kw_only=True):
    """Fields of requests that score pairs of texts."""

    max_tokens_per_query: AmountOrNone | None = None
    max_tokens_per_doc: AmountOrNone | None = None
    instruction: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def template_kwargs(self) -> dict[str, Any] | None:
        """Variables for the score template."""
        if self.instruction is None:
            return self.chat_template_kwargs
        return {"instruction": self.instruction, **(self.chat_template_kwargs or {})}


class ScoreRequest(ScoringFields, kw_only=True):
    """Body of POST /score; each side has several accepted names."""

    data_1: Texts | None = None
    data_2: Texts | None = None
    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None

    @property
    def sides(self) -> tuple[Any, Any]:
        """Return the queries and the documents."""
        named = (
            ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"),
            ("text_1", "text_2"),
        )  # fmt: skip
        for first, second in named:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                return getattr(self, first), getattr(self, second)
        raise ApiError(
            400,
            "Expected queries and documents, data_1 and data_2, or text_1 and text_2.",
            param="queries",
        )


class RerankRequest(ScoringFields, kw_only=True):
    """The body of POST /rerank."""

    query: str | dict[str, Any] | None = None
    documents: Texts | None = None
    top_n: int | None = None


def check_common(request: PoolingFields) -> None:
    """Raise ApiError for field values that no pooling endpoint supports."""
    if request.normalize is not None:
        raise ApiError(
            400,
            "Parameter `normalize` was removed; use `use_activation` instead.",
            param="normalize",
        )
    if request.padding not in (None, *PADDINGS):
        raise ApiError(
            400,
            f"padding={request.padding!r}: expected one of {', '.join(PADDINGS)}.",
            param="padding",
        )


def inputs_of(request: InputFields, settings: ServerSettings) -> list[Any]:
    """Return the inputs; each is a text, token ids or a conversation."""
    given = request.messages if request.messages is not None else request.input
    name = "input" if request.messages is None else "messages"
    if given is None or given in ("", []):
        raise ApiError(400, f"{name} is missing or empty; expected texts or token ids.", param=name)
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], dict):
        return [given]
    if request.messages is not None and not isinstance(given[0], list):
        raise ApiError(400, "messages: expected a list of messages.", param=name)
    if isinstance(given[0], int):
        return [one_kind(given, int, name)]
    if len(given) > settings.max_prompts:
        raise ApiError(
            400,
            f"{name} has {len(given)} items; at most {settings.max_prompts} are allowed in one "
            "request.",
            param=name,
        )
    found: list[Any] = one_kind(given, type(given[0]), name)
    for index, item in enumerate(found):
        where = f"{name}[{index}]"
        if not item:
            raise ApiError(400, f"{where} is empty.", param=where)
        if isinstance(item, list) and not all(type(one) is type(item[0]) for one in item):
            raise ApiError(400, f"{where}: expected token ids, or messages.", param=where)
        if isinstance(item, list) and not isinstance(item[0], int | dict):
            raise ApiError(400, f"{where}: expected token ids, or messages.", param=where)
    return found
