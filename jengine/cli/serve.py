"""`jengine serve`: OpenAI-compatible HTTP server for one model.

In: a model and flags, named as in vLLM. Out: a server that runs until a signal. It listens before
the engine is loaded, so that /health always answers.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
from collections.abc import Mapping
from typing import Any

from jengine.assembly.processes.core_shares import can_divide
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.nodes import Nodes
from jengine.cli.flags import add_engine_flags, engine_arguments
from jengine.cli.main import OpenLLM
from jengine.cli.parser import Parser
from jengine.cli.serving.flags import add_model, add_server_flags, server_settings, take_model
from jengine.cli.serving.logs import configure_server_logs
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError
from jengine.server.settings import ServerSettings

logger = logging.getLogger(__name__)

# Environment variable with the secret shared by engines on several hosts.
SECRET = "JENGINE_DATA_PARALLEL_SECRET"  # noqa: S105
USAGE = "MODEL [flags]"
EXAMPLES = """\
examples:
  jengine serve demo
  jengine serve ./model --port 8080 --api-key secret --served-model-name mine
  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
       -d '{"prompt": "Once upon a time", "max_tokens": 32}'
"""


def add_flags(parser: Parser) -> None:
    add_model(parser)
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file with flags; those given here go before it"
    )
    parser.add_argument(
        "--profiler-dir", metavar="DIR", help="where the admin route /start_profile writes traces"
    )
    parser.add_argument(
        "--api-server-count", "-asc", type=int, metavar="N", default=None,
        help="processes that serve HTTP in front of the same cores [one per data-parallel core]",
    )  # fmt: skip
    parser.add_argument(
        "--headless", action="store_true",
        help="run steps or copies of the model for a server on another host, and no API",
    )  # fmt: skip
    add_server_flags(parser)
    add_engine_flags(parser, short=True)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    """Serve until a signal."""
    take_model(arguments)
    settings = server_settings(arguments, os.environ)
    args = engine_args(arguments)
    name = "Headless" if arguments.headless else "APIServer"
    configure_server_logs(settings.uvicorn_log_level, debug=arguments.debug, process_name=name)
    cores = args.ranks.size if args.replicas_in_processes else 1
    count = api_processes(arguments, args.nodes, cores)
    # Lazy imports: these bring numpy and tokenizers.
    if args.nodes.several and arguments.headless:
        return importlib.import_module("jengine.cli.serving.node").serve_node(found(args))
    if count == 0:
        return importlib.import_module("jengine.cli.serving.headless").serve_cores(found(args))
    warn_if_open(settings)
    if count > 1:
        several = importlib.import_module("jengine.cli.serving.several_processes")
        return several.serve_with_several(settings, found(args), count, debug=arguments.debug)
    serving = importlib.import_module("jengine.cli.serving.one_process")
    return serving.serve(settings, args, terminal)


def found(args: EngineArgs) -> EngineArgs:
    """Resolve models named in the settings to local folders."""
    locating = importlib.import_module("jengine.assembly.located")
    return locating.located(args, locating.checked_elsewhere(args))


def api_processes(arguments: argparse.Namespace, nodes: Nodes, cores: int) -> int:
    """Number of API processes; 0 with --headless. By default one per engine core, since one process
    cannot keep several busy."""
    count = arguments.api_server_count
    check_node(arguments.headless, nodes)
    if arguments.headless:
        if count:
            raise ConfigError(
                f"--api-server-count={count} cannot be used with --headless (no API servers are "
                "started in headless mode)."
            )
        return 0
    if count is not None and count < 1:
        raise ConfigError(
            f"--api-server-count={count}: expected at least 1; --headless runs cores alone."
        )
    if count is None and cores > 1:
        count = cores
        logger.info("Defaulting api_server_count to data_parallel_size (%d).", count)
    return count or 1


def check_node(headless: bool, nodes: Nodes) -> None:
    """Raise ConfigError unless exactly node 0 has the API."""
    if nodes.several and headless != (nodes.rank > 0):
        raise ConfigError(
            f"--node-rank {nodes.rank} of --nnodes {nodes.count} "
            f"{'with' if headless else 'without'} --headless: node 0 has the API, and every other "
            "node is started with --headless."
        )


def engine_args(arguments: argparse.Namespace) -> EngineArgs:
    """Engine settings with a server's defaults: statistics are logged, and data-parallel replicas
    run in processes."""
    given: dict[str, Any] = {"disable_log_stats": False, **engine_arguments(arguments)}
    parser = vars(arguments).get("reasoning_parser")
    if parser is not None:  # both a server flag and a grammar setting
        given["reasoning_parser"] = parser
    given.setdefault("data_parallel_backend", replicas_in(given, os.environ))
    if (secret := os.environ.get(SECRET)) is not None:
        given["data_parallel_secret"] = secret
    folder = vars(arguments).get("profiler_dir")
    if folder is not None:
        given["profiler_config"] = {"profiler": "jax", "dir": folder}
    return EngineArgs.checked("jengine serve", model=arguments.model, **given)


def replicas_in(given: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Default place of data-parallel replicas.

    In processes, a crash takes only one replica's requests. A mesh over hosts, or devices that
    cannot be divided among processes, need one process.
    """
    over_hosts = given.get("multihost") is not None or given.get("executor") == "multihost"
    return "local" if over_hosts or not can_divide(environ) else "process"


def warn_if_open(settings: ServerSettings) -> None:
    """Warn if the server is reachable from other machines without an API key."""
    local = settings.uds is not None or settings.host in ("127.0.0.1", "::1", "localhost")
    if not local and not settings.api_key:
        logger.warning(
            "--host %s without --api-key: whoever reaches this port can use the model.",
            settings.host,
        )
