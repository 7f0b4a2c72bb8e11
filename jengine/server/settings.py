"""Settings of the server: one field per flag, with vLLM's names and our defaults. No jax.

In: flags of `jengine serve`, or keyword arguments in tests. Out: a frozen object. Must not know
settings of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """All options of the HTTP server."""

    # --- where it listens ------------------------------------------------------------------
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None  # a Unix socket instead of host and port
    root_path: str = ""  # the path under which a proxy publishes this server
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_ca_certs: str | None = None
    ssl_cert_reqs: int = 0  # as in the module ssl: 1 and 2 ask for a client's certificate
    ssl_ciphers: str = "TLSv1"  # of OpenSSL; uvicorn's default

    # --- who may call it -------------------------------------------------------------------
    api_key: tuple[str, ...] = field(default=(), repr=False)
    admin_key: tuple[str, ...] = field(default=(), repr=False)  # none: no admin routes
    allowed_origins: tuple[str, ...] = ()  # none: no CORS headers
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    middleware: tuple[str, ...] = ()  # package.module:name, around all of the server's own

    # --- what it serves --------------------------------------------------------------------
    served_model_name: tuple[str, ...] = ()  # none: the model as it was given
    lora_modules: tuple[str, ...] = ()  # adapters: NAME=FOLDER, or JSON
    lora_dirs: tuple[str, ...] = ()  # folders of loadable adapters; none: beside lora_modules
    trust_request_chat_template: bool = False
    default_chat_template_kwargs: Mapping[str, Any] | None = None
    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    response_role: str = "assistant"
    enable_auto_tool_choice: bool = False
    exclude_tools_when_tool_choice_none: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    grammar_in_reasoning: bool = False  # grammars begin with the first token, not after reasoning
    # Names under which reasoning is returned; older clients read the second.
    reasoning_fields: tuple[str, ...] = ("reasoning", "reasoning_content")
    return_tokens_as_token_ids: bool = False
    enable_prompt_tokens_details: bool = False
    enable_force_include_usage: bool = False
    enable_per_request_metrics: bool = False
    enable_tokenizer_info_endpoint: bool = False
    stream_interval: int = 1  # tokens per streamed chunk, unless a request asks for more
    batch_dir: str | None = None  # of /v1/files and /v1/batches; None: off

    # --- limits ----------------------------------------------------------------------------
    max_body_bytes: int = 32 * MIB
    max_header_bytes: int = 64 * 1024
    max_header_count: int = 100
    max_n: int = 128
    max_prompts: int = 1024
    max_stop_strings: int = 4
    max_text_chars: int | None = None  # of one text or conversation; None: 2^20, 16 per token
    max_messages: int | None = None  # None: 1024, or one per 4 tokens of the context
    # Queued requests cost little but their prompts, so tokens are limited too.
    max_num_queued_reqs: int | None = None  # None: thousands, see queue_limit
    max_num_queued_tokens: int | None = 4 << 20  # prompt tokens that wait; None: no limit
    max_stored_responses: int = 1000  # of /v1/responses, for previous_response_id
    max_stored_response_bytes: int = 64 * MIB
    response_store_seconds: float = 3600.0
    render_timeout: float = 10.0  # seconds for a chat template and its tokens
    max_batch_file_bytes: int = 200 * MIB
    max_batch_dir_bytes: int = 10 * 1024 * MIB
    strict_requests: bool = False  # unknown fields are an error

    # --- time ------------------------------------------------------------------------------
    request_timeout: float | None = None  # seconds; the header X-Request-Timeout may lower it
    shutdown_timeout: float = 30.0
    stall_timeout: float = 60.0  # seconds without a step while work is scheduled
    sse_keep_alive_interval: int = 0  # seconds; 0: no comments
    timeout_keep_alive: int = 5

    # --- metrics and logs ------------------------------------------------------------------
    metrics_compat: Literal["jengine", "vllm"] = "jengine"  # prefix of the names at /metrics
    enable_log_requests: bool = False
    uvicorn_log_level: str = "info"
    disable_uvicorn_access_log: bool = False
    disable_access_log_for_endpoints: str = ""  # comma-separated paths

    def queue_limit(self, max_num_seqs: int) -> int:
        """Maximum number of running and waiting completions."""
        if self.max_num_queued_reqs is not None:
            return self.max_num_queued_reqs
        return max(4096, 4 * max_num_seqs + 256)
