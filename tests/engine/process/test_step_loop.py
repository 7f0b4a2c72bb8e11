"""The loop that runs a core's steps: what it says of the core between them."""

from __future__ import annotations

import threading
import time

from jengine.engine.process.step_loop import StepLoop
from tests.engine.scripted import scripted_engine


def test_the_last_step_ages_while_the_core_rests() -> None:
    """Also in counts that were made when it came to rest."""
    client = scripted_engine().client
    loop = StepLoop(client, lambda deltas: None, lambda error: None, lambda: None)
    ended = threading.Event()
    thread = threading.Thread(target=loop.run, args=[ended])
    thread.start()
    try:
        time.sleep(0.02)
        before = loop.state().counts.last_step_age
        time.sleep(0.1)
        assert 0.09 < loop.state().counts.last_step_age - before < 60
    finally:
        ended.set()
        loop.wake()
        thread.join()
