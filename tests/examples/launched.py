"""examples/multihost/spmd.py without its engine, for tests of launchers: `--model` says what each
process does after they have met, and in which folder it tells its number on this host."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path

import jax
from jax.experimental import multihost_utils

PROGRAM = Path(__file__).parents[2] / "examples" / "multihost" / "spmd.py"


def answer(told: str) -> None:
    scenario, folder = told.split(":")
    rank = jax.process_index()
    (Path(folder) / f"{rank}.pid").write_text(f"{os.getpid()}\n")
    if scenario == "raise" and rank == 1:
        raise ValueError("told to fail")
    if scenario != "sum":
        time.sleep(600)
    ranks = multihost_utils.process_allgather(jax.numpy.int32(rank))
    # In one write: Open MPI marks the pieces that it reads, and stdout is not buffered.
    sys.stdout.write(f"met {' '.join(map(str, ranks.tolist()))}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    spec = importlib.util.spec_from_file_location("spmd", PROGRAM)
    assert spec is not None and spec.loader is not None
    spmd = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(spmd)
    spmd.answer = answer
    spmd.main()
