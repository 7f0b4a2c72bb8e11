"""Strictness for every test: the CPU only, no network, no silent broadcasting."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from jengine.assembly import args

# Before anything imports jax.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
# Triton kernels run in Triton's interpreter. Before anything imports triton, as torch does.
os.environ.setdefault("TRITON_INTERPRET", "1")
# Tests run each program a few times: a quick compile is worth more than a quick program. XLA's own
# passes are the same; LLVM does less. CI runs the slow tests, and many of the quick ones a second
# time, with optimized programs (.ci/run).
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Torch's matmuls are so small here that its threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# One compile cache for the whole run: the same tiny programs are needed by many tests.
COMPILE_CACHE = Path(__file__).parent.parent / ".pytest_cache" / "xla"
COMPILE_CACHE.mkdir(parents=True, exist_ok=True, mode=0o700)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILE_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Which program runs a step, and so how numbers round, would depend on time in an engine that starts
# before everything is compiled. tests/api/test_early_start.py tests those.
args.USUAL_WAIT = "all"

# A shell that starts something in the background lets it ignore Ctrl-C, which some tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)
