"""Worker process: checks draws one after the other, in the environment that its implementations
need.

In: per line of stdin, JSON with family, number and implementation; an empty object is a ping. Out:
one line each.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from typing import Any

import jax

from jengine.bench.fidelity.check import check
from jengine.bench.fidelity.child_process import ChildEnded
from jengine.bench.fidelity.implementations import IMPLEMENTATIONS
from jengine.bench.fidelity.transformers_process import Transformers
from jengine.bench.mlir_contexts import reuse_mlir_contexts
from jengine.errors import JengineError
from pallas_kernels.cpu.library import instruction_set

# Every draw has programs of its own, which JAX would keep.
DRAWS_BETWEEN_CLEARING = 25


def main() -> None:
    """Answer requests until stdin closes."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # Whatever libraries print is no answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    reuse_mlir_contexts()
    gc.disable()
    with Transformers() as theirs:
        for count, line in enumerate(sys.stdin, 1):
            job = json.loads(line)
            answers.write(json.dumps(answer(theirs, job) if job else {}) + "\n")
            answers.flush()
            if count % DRAWS_BETWEEN_CLEARING == 0:
                jax.clear_caches()
                gc.collect()


def answer(theirs: Transformers, job: dict[str, Any]) -> dict[str, Any]:
    """The result of a check, or the error that prevented it."""
    began = time.process_time()
    how = IMPLEMENTATIONS[job["implementation"]]
    said: dict[str, Any]
    try:
        found = check(theirs, job["family"], job["number"], how)
        said = {"error": found.error, "limit": found.limit, "note": found.note}
    except ChildEnded:
        raise  # the next draw needs another process, too
    except JengineError as refusal:
        said = {"refused": str(refusal)}
    except Exception as fault:  # noqa: BLE001 - a draw that breaks is a finding, and not the last
        said = {"broke": f"{type(fault).__name__}: {fault}"}
    seconds = time.process_time() - began
    return {**said, "seconds": seconds, "instructions": instruction_set()}


if __name__ == "__main__":
    main()
