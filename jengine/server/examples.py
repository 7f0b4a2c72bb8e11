"""For each endpoint a request that it can answer, which /openapi.json shows."""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.server.chat.fields import ChatRequest
from jengine.server.completions.fields import CompletionRequest
from jengine.server.messages.fields import CountRequest, MessagesRequest
from jengine.server.responses.fields import ResponsesRequest
from jengine.server.routes.admin import AbortRequest
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
    AbortRequest: {"request_ids": ["cmpl-1"]},
}
