"""`jengine route`: load balancer for several servers."""

from __future__ import annotations

import argparse
import importlib
import os

import uvicorn

from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal
from jengine.client.address import Address
from jengine.errors import ConfigError

ADMIN_KEY, SERVERS = "JENGINE_ADMIN_KEY", "/route/servers"
USAGE = "URL... [flags]"
EXAMPLES = """\
A prompt goes to the server that has read the longest beginning of it, unless that has much more to
do than the others; a server that does not answer is left out until it does.

examples:
  jengine route http://a:8000 http://b:8000 --port 9000
  jengine route http://decode:8000 --prefill http://prefill-1:8000 http://prefill-2:8000

For the second one, start the servers with the same secret:
  jengine serve MODEL --kv-transfer-config '{"kv_connector": "ZmqConnector",
    "kv_role": "kv_producer", "kv_ip": "10.0.0.1",
    "kv_connector_extra_config": {"secret": "..."}}'    # kv_consumer: those that go on

Servers join and leave while requests run, with --admin-key KEY; one that leaves ends what it has:
  curl -X POST http://localhost:9000/route/servers -H "Authorization: Bearer KEY" \\
    -d '{"url": "http://c:8000", "role": "decode"}'    # DELETE: leaves; GET: lists them
"""


def add_flags(parser: Parser) -> None:
    parser.add_argument("servers", metavar="URL", nargs="+", help="servers that answer")
    parser.add_argument("--prefill", metavar="URL", nargs="+", default=[],
                        help="servers that compute prompts for those")  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at")
    parser.add_argument("--port", type=int, default=9000, help="port to listen at")
    parser.add_argument("--admin-key", default=os.environ.get(ADMIN_KEY),
                        help=f"key with which servers are added and removed at {SERVERS}; also "
                        f"{ADMIN_KEY}")  # fmt: skip
    parser.add_argument("--health-every", type=float, default=2.0,
                        help="seconds between two looks at the servers")  # fmt: skip
    parser.add_argument("--prefill-seconds", type=float, default=600.0,
                        help="seconds in which a prompt must be computed")  # fmt: skip
    parser.add_argument("--wait-seconds", type=float, default=30.0,
                        help="seconds that a prompt waits for a server while none "
                        "answers")  # fmt: skip


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: object) -> int:
    """Route until a signal."""
    for url in (*arguments.servers, *arguments.prefill):
        Address.of(url)  # validated before anything is opened
    if arguments.health_every <= 0 or arguments.prefill_seconds <= 0:
        raise ConfigError("--health-every and --prefill-seconds: expected seconds above 0.")
    if arguments.wait_seconds < 0:
        raise ConfigError("--wait-seconds: expected seconds, 0 for not at all.")
    # Imports numpy, which help avoids.
    room = importlib.import_module("jengine.routing.app")
    app = room.make_router(
        arguments.servers, arguments.prefill, health_every=arguments.health_every,
        prefill_seconds=arguments.prefill_seconds, wait_seconds=arguments.wait_seconds,
        admin_key=arguments.admin_key or None,
    )  # fmt: skip
    terminal.say(f"Routing at http://{arguments.host}:{arguments.port}")
    # Not uvloop: the client's connections need an asyncio.Transport.
    uvicorn.run(app, host=arguments.host, port=arguments.port, log_level="warning", loop="asyncio")
    return 0
