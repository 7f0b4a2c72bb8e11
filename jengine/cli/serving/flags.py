"""Server flags of `jengine serve`, and the settings they make.

In: a parser; later a namespace and the environment, which may hold API keys. Out: ServerSettings.
Must not know the engine's flags.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from jengine.adapters import adapter_modules
from jengine.assembly.settings.flags import add_field_flags, flag_of
from jengine.assembly.settings.values import check_types
from jengine.cli.parser import Parser
from jengine.errors import ConfigError
from jengine.server.settings import ServerSettings
from jengine.text.chat_parser import check_parser_names

# For booleans, the help of the flag that changes the default.
SERVER_HELP = {
    "api_key": "keys that open the API, one or several; also JENGINE_API_KEY",
    "admin_key": "keys that open the admin routes; also JENGINE_ADMIN_KEY",
    "served_model_name": "names of the model in the API; the first is in responses",
    "lora_modules": "LoRA adapters as NAME=FOLDER or JSON with name and path: each is a model",
    "lora_dirs": "folders below which /v1/load_lora_adapter may load; those of --lora-modules",
    "allowed_origins": "CORS: origins, as words, with commas or as a JSON list",
    "allowed_methods": "CORS: methods, likewise",
    "allowed_headers": "CORS: headers, likewise",
    "default_chat_template_kwargs": "JSON object, or --default-chat-template-kwargs.KEY VALUE: "
    "template variables for requests that do not set them",
    "host": "address to listen on; others than this machine reach 0.0.0.0",
    "port": "port to listen on; 0: any that is free",
    "uds": "Unix socket to listen on, instead of host and port",
    "root_path": "path under which a proxy publishes the server",
    "ssl_keyfile": "file of the TLS key",
    "ssl_certfile": "file of the TLS certificate",
    "ssl_ca_certs": "file of the CA certificates",
    "ssl_cert_reqs": "whether clients need a certificate: 0 no, 1 if they have one, 2 yes",
    "ssl_ciphers": "TLS ciphers, as OpenSSL names them",
    "allow_credentials": "CORS: browsers may send credentials",
    "middleware": "ASGI middleware, package.module:Class, or async functions of (request, "
    "call_next); the last is the outermost",
    "trust_request_chat_template": "requests may bring a chat template",
    "chat_template_content_format": "how templates get the content of messages: as they seem "
    "to read it, as one string, or as parts",
    "response_role": "role of the answers' messages",
    "enable_auto_tool_choice": "let the model decide to call tools; needs --tool-call-parser",
    "exclude_tools_when_tool_choice_none": "do not show tools to the model when it may not call",
    "tool_call_parser": "how this model writes tool calls",
    "reasoning_parser": "how this model marks its reasoning",
    "return_tokens_as_token_ids": "write tokens of log-probabilities as token_id:N",
    "enable_prompt_tokens_details": "tell in usage how many prompt tokens were cached",
    "enable_force_include_usage": "send usage with every stream",
    "enable_per_request_metrics": "tell in responses how long they took",
    "enable_tokenizer_info_endpoint": "offer GET /tokenizer_info",
    "stream_interval": "tokens of each streamed chunk",
    "max_body_bytes": "largest body of a request",
    "max_text_chars": "most characters of one text or conversation; 16 for each token of the "
    "context, and at least 1048576",
    "max_messages": "most messages of a conversation; one for each 4 tokens of the context, and at "
    "least 1024",
    "max_num_queued_reqs": "most completions that may run or wait; 4,096 or more",
    "max_num_queued_tokens": "most prompt tokens that may wait; 4,194,304",
    "max_stored_responses": "most responses of /v1/responses that are kept",
    "response_store_seconds": "seconds that a response of /v1/responses is kept",
    "batch_dir": "folder of /v1/files and /v1/batches, which are off without it",
    "max_batch_file_bytes": "largest file of /v1/files",
    "max_batch_dir_bytes": "bytes of --batch-dir above which no file is taken",
    "render_timeout": "seconds for a chat template and for tokenizing",
    "strict_requests": "refuse requests with unknown fields",
    "request_timeout": "seconds after which a request is aborted",
    "shutdown_timeout": "seconds that open requests get after SIGTERM",
    "stall_timeout": "seconds without a step after which health turns red (compiling: ten times)",
    "sse_keep_alive_interval": "seconds between comments in an idle stream; 0: none",
    "timeout_keep_alive": "seconds that an idle connection stays open",
    "metrics_compat": "prefix of the metrics' names; vllm: for dashboards made for vLLM",
    "enable_log_requests": "log the parameters of every request",
    "uvicorn_log_level": "critical, error, warning, info, debug or trace",
    "disable_uvicorn_access_log": "do not log every request's path and status",
    "disable_access_log_for_endpoints": "nor those of these paths, with commas between",
}
# vLLM's flags for behaviour that is always on here, with argparse options.
ONLY_ON, SWITCH = {"action": "store_true"}, {"action": argparse.BooleanOptionalAction}
ALWAYS: dict[str, dict[str, Any]] = {
    "--disable-log-requests": ONLY_ON,  # unless --enable-log-requests is given
    "--enable-request-id-headers": SWITCH,
    "--enable-server-load-tracking": SWITCH,
    "--disable-fastapi-docs": ONLY_ON,
    "--enable-flash-late-interaction": SWITCH,  # MaxSim is a single matmul either way
    "--enable-log-deltas": SWITCH,  # texts of prompts and answers are never logged
    "--max-log-len": {"type": int},
}
# vLLM's flag -> our setting.
RENAMED = {
    "--h11-max-incomplete-event-size": "max_header_bytes",
    "--h11-max-header-count": "max_header_count",
}
ENVIRONMENT = {
    "api_key": ("JENGINE_API_KEY", "VLLM_API_KEY"),
    "admin_key": ("JENGINE_ADMIN_KEY",),
}


def add_model(parser: Parser) -> None:
    """Add MODEL, which may also be given as --model, as in vLLM."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a folder, org/name, or demo")
    parser.add_argument("--model", dest="model_flag", help=argparse.SUPPRESS)


def take_model(arguments: argparse.Namespace) -> None:
    """Set `arguments.model` to the one that was given. Raises ConfigError without one."""
    arguments.model = arguments.model or arguments.model_flag
    if arguments.model is None:
        raise ConfigError("MODEL is missing: give a model folder, org/name, or demo.")


def add_server_flags(parser: Parser, only: Sequence[str] | None = None) -> None:
    """Add a flag per setting, or for those in `only`."""
    group = parser.add_argument_group("server")
    if only is None:
        add_names_of_vllm(group)
    helps = {name: SERVER_HELP[name] for name in only or SERVER_HELP}
    add_field_flags(group, ServerSettings, helps)


def add_names_of_vllm(group: argparse._ArgumentGroup) -> None:
    """Add hidden flags: vLLM's other names, and its flags for what is always on here."""
    for name, how in ALWAYS.items():
        group.add_argument(name, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **how)
    for name, setting in RENAMED.items():
        group.add_argument(
            name, dest=setting, type=int, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def server_settings(
    arguments: argparse.Namespace, environment: Mapping[str, str]
) -> ServerSettings:
    """Settings from flags and environment variables. Raises ConfigError."""
    names = set(get_type_hints(ServerSettings))
    given: dict[str, Any] = {
        name: value for name, value in vars(arguments).items() if name in names
    }
    for name, variables in ENVIRONMENT.items():
        found = [environment[variable] for variable in variables if environment.get(variable)]
        if name not in given and found:
            given[name] = found[:1]
    grammars = vars(arguments).get("structured_outputs_config") or {}
    if grammars.get("reasoning_parser"):
        given.setdefault("reasoning_parser", grammars["reasoning_parser"])
    given["grammar_in_reasoning"] = bool(grammars.get("enable_in_reasoning"))
    given.setdefault("served_model_name", [str(arguments.model)])
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    settings = ServerSettings(**values)
    check(settings)
    return settings


def check(settings: ServerSettings) -> None:
    """Raise ConfigError for settings of wrong type or that contradict each other."""
    check_types(settings)
    if settings.enable_auto_tool_choice and settings.tool_call_parser is None:
        raise ConfigError("--enable-auto-tool-choice needs --tool-call-parser NAME.")
    adapter_modules(settings.lora_modules)
    check_parser_names(settings.reasoning_parser, settings.tool_call_parser)
    if (settings.ssl_keyfile is None) != (settings.ssl_certfile is None):
        raise ConfigError("TLS needs both --ssl-keyfile and --ssl-certfile.")
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
            raise ConfigError(f"{flag_of(field.name)} {value}: expected a number of at least 0.")
