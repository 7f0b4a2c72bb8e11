"""`jengine run-batch`: answers a file of requests in OpenAI's batch format.

In: a model, files or URLs, flags named as in vLLM. Out: result files, and a summary on stderr.
Running the same command again resumes an interrupted batch.
"""

from __future__ import annotations

import argparse
import importlib
import os

from jengine.cli.flags import add_engine_flags
from jengine.cli.main import OpenLLM
from jengine.cli.parser import Parser
from jengine.cli.serving.flags import add_model, add_server_flags, server_settings, take_model
from jengine.cli.serving.logs import configure_server_logs
from jengine.cli.terminal import Terminal

USAGE = "MODEL -i FILE -o FILE [flags]"
EXAMPLES = """\
examples:
  jengine run-batch demo -i requests.jsonl -o answers.jsonl
  jengine run-batch demo -i http://host/in.jsonl -o http://host/out.jsonl --output-tmp-dir /scratch
each line of the input:
  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
   "body": {"messages": [{"role": "user", "content": "What is 23 + 45?"}], "max_tokens": 32}}
"""
# Server settings that affect responses, and the metrics address.
SETTINGS = (
    "host", "port", "served_model_name", "lora_modules", "default_chat_template_kwargs",
    "trust_request_chat_template", "chat_template_content_format", "response_role",
    "enable_auto_tool_choice", "exclude_tools_when_tool_choice_none", "tool_call_parser",
    "reasoning_parser", "return_tokens_as_token_ids", "enable_prompt_tokens_details",
    "enable_per_request_metrics", "max_body_bytes", "max_text_chars", "max_messages",
    "render_timeout", "strict_requests", "request_timeout", "stall_timeout", "metrics_compat",
    "enable_log_requests",
)  # fmt: skip


def add_flags(parser: Parser) -> None:
    add_model(parser)
    parser.add_argument(
        "-i", "--input-file", required=True, metavar="FILE",
        help="requests, one a line; an http or https address is fetched before",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output-file", required=True, metavar="FILE",
        help="answers, one a line, in the order in which they are done; a file that exists is gone "
        "on with; to an http or https address they are sent with PUT at the end",
    )  # fmt: skip
    parser.add_argument(
        "--error-file", metavar="FILE", help="lines that failed, which else are in the output"
    )
    parser.add_argument(
        "--output-tmp-dir", metavar="DIR",
        help="where answers for an address are kept until they are sent, so that a batch that was "
        "interrupted goes on",
    )  # fmt: skip
    parser.add_argument(
        "--enable-metrics", action="store_true", help="serve metrics at --host and --port"
    )
    # vLLM's flag: usage is always included here.
    parser.add_argument("--enable-force-include-usage", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file with flags; those given here go before it"
    )
    add_server_flags(parser, SETTINGS)
    add_engine_flags(parser, short=True)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    take_model(arguments)
    settings = server_settings(arguments, os.environ)
    configure_server_logs(
        settings.uvicorn_log_level, debug=arguments.debug, process_name="RunBatch"
    )
    offline = importlib.import_module("jengine.cli.serving.offline")
    progress = offline.answer_files(arguments, settings)
    terminal.note(f"{progress}.")
    return 0
