"""Walks the classes of transformers' causal mapping, each with a time limit in a worker process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from jengine.bench.coverage.kept import Kept, named
from jengine.bench.fidelity.child_process import Ended
from jengine.bench.fidelity.implementations import IMPLEMENTATIONS
from jengine.bench.fidelity.transformers_process import Transformers
from jengine.bench.fidelity.workers import Workers
from jengine.errors import ConfigError, nearest_name

PROGRAM = (sys.executable, "-m", "jengine.bench.coverage.worker")


def walk(kept: Kept, only: Sequence[str] | None, limit_s: float) -> Iterator[str]:
    """Record the outcome of every class; yields a line for each."""
    with Transformers() as theirs:
        known = theirs.causal_classes()
    for name in only or ():
        if name not in known:
            raise ConfigError(f"--only {name}: no causal class.{nearest_name(name, known)}")
    environment = IMPLEMENTATIONS["cpu"].environment
    with Workers(limit_s, PROGRAM) as workers:
        for architecture in only or known:
            try:
                answer = workers.ask({"architecture": architecture}, environment)
            except Ended as end:
                answer = {"outcome": "broke", "reason": str(end)}
            kept.add(architecture, answer)
            error = f" {answer['error']:.1e}" if "error" in answer else ""
            yield f"{architecture}: {named(answer)}{error} {answer.get('reason', '')}".rstrip()
