"""`jengine serve --headless --node-rank N`: a worker node of the server on node 0.

In: engine settings. Out: exit status: 0 after a signal, else 1, so that a supervisor restarts it
for the next server.
"""

from __future__ import annotations

import logging
import os
import signal
import threading

from jengine.assembly.node_program import run_node
from jengine.assembly.processes.deployment import deployment_of
from jengine.assembly.settings.args import EngineArgs

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve_node(args: EngineArgs) -> int:
    """Run this node until node 0 leaves or a signal comes."""
    end_on_signals()
    logger.critical("This node ends: %s", run_node(deployment_of(args)))
    return 1


def end_on_signals() -> None:
    """Exit immediately on a signal, even while waiting in a collective; node 0 notices and ends the
    other nodes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # inherited by threads that start later

    def wait() -> None:
        number = signal.sigwait(SIGNALS)
        logger.info("%s: shutting down.", signal.Signals(number).name)
        os._exit(0)

    threading.Thread(target=wait, name="jengine-signals", daemon=True).start()
