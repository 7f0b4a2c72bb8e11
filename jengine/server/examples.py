"""An example request per endpoint for /openapi.json, and its required fields."""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.server.batches.types import CreateBatch
from jengine.server.chat.fields import ChatRequest
from jengine.server.completions.fields import CompletionRequest
from jengine.server.messages.fields import CountRequest, MessagesRequest
from jengine.server.pooling.cohere import EmbedRequest
from jengine.server.pooling.fields import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from jengine.server.responses.fields import ResponsesRequest
from jengine.server.routes.adapters import LoadAdapterRequest, UnloadAdapterRequest
from jengine.server.routes.admin import AbortRequest, ScaleRequest
from jengine.server.routes.tokenizing import DetokenizeRequest, TokenizeRequest

_CONVERSATION = [{"role": "user", "content": "Tell me a story."}]
EXAMPLES: dict[type[msgspec.Struct], dict[str, Any]] = {
    CompletionRequest: {"prompt": "Once upon a time", "max_tokens": 8},
    ChatRequest: {"messages": _CONVERSATION, "max_tokens": 8},
    MessagesRequest: {"messages": _CONVERSATION, "max_tokens": 8},
    CountRequest: {"messages": _CONVERSATION},
    ResponsesRequest: {"input": "Tell me a story.", "max_output_tokens": 16},
    TokenizeRequest: {"prompt": "Once upon a time"},
    DetokenizeRequest: {"tokens": [1, 2, 3]},
    EmbeddingRequest: {"input": ["A cat sits.", "A dog runs."]},
    EmbedRequest: {"texts": ["A cat sits.", "A dog runs."]},
    PoolingRequest: {"input": "A cat sits."},
    ClassifyRequest: {"input": "A cat sits."},
    ScoreRequest: {"queries": "What sits?", "documents": ["A cat sits.", "A dog runs."]},
    RerankRequest: {"query": "What sits?", "documents": ["A cat sits.", "A dog runs."]},
    CreateBatch: {
        "input_file_id": "file-1f0c",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    AbortRequest: {"request_ids": ["cmpl-1"]},
    ScaleRequest: {"new_data_parallel_size": 2},
    LoadAdapterRequest: {"lora_name": "sql", "lora_path": "/adapters/sql"},
    UnloadAdapterRequest: {"lora_name": "sql"},
}
# Decoding accepts bodies without these, so that the error can say what was expected.
REQUIRED: dict[type[msgspec.Struct], tuple[str, ...]] = {
    CompletionRequest: ("prompt",),
    ChatRequest: ("messages",),
    MessagesRequest: ("messages", "max_tokens"),
    CountRequest: ("messages",),
    ResponsesRequest: ("input",),
    DetokenizeRequest: ("tokens",),
    EmbeddingRequest: ("input",),
    RerankRequest: ("query", "documents"),
    CreateBatch: ("input_file_id", "endpoint"),
    AbortRequest: ("request_ids",),
    LoadAdapterRequest: ("lora_name", "lora_path"),
    UnloadAdapterRequest: ("lora_name",),
}
