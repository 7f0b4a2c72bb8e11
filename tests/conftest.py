"""Strictness for every test: the CPU only, no network, no silent broadcasting."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

# Traces are thousands of objects that stay. Collections at each 700 of them, Python's default, take
# a tenth of the time.
gc.set_threshold(10_000, 10, 10)

# What tests import is compiled once for all their processes, and for the next run.
sys.dont_write_bytecode = False

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from jengine.assembly.settings import warm_up_settings  # noqa: E402
from jengine.bench.xla_flags import known_flags  # noqa: E402

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
# Loops are emitted by XLA's older emitter then, which takes a third less of the whole compile time,
# and a program is compiled in one piece: each of several would set LLVM up for itself.
QUICK = {"--xla_cpu_use_fusion_emitters": "false", "--xla_cpu_parallel_codegen_split_count": "1"}
given = os.environ.get("XLA_FLAGS", "")
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] != "0":
    quick = known_flags(f"{flag}={value}" for flag, value in QUICK.items() if flag not in given)
    os.environ["XLA_FLAGS"] = f"{given} {quick}".strip()
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
warm_up_settings.USUAL_WAIT = "all"

# A busy machine may take any time for an example.
settings.register_profile("any time", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any time")

# A shell that starts something in the background lets it ignore Ctrl-C, which some tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let a test that changes functions share no program with engines of other tests: they may have
    traced what it changes, or would run what it has changed."""
    shared = sys.modules.get("sharding.shared")
    if shared is None or "monkeypatch" not in getattr(item, "fixturenames", ()):
        return (yield)
    kept, shared._KEPT = shared._KEPT, WeakValueDictionary()  # pyrefly: ignore[missing-attribute]
    try:
        return (yield)
    finally:
        shared._KEPT = kept  # pyrefly: ignore[missing-attribute]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import all tests without garbage collections, which would take a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave what stays for the whole run, thousands of tests and what they import, out of garbage
    collections: a test that asks for one would wait half a second."""
    if "jax" in sys.modules:
        from jengine.bench.mlir_contexts import reuse_mlir_contexts

        reuse_mlir_contexts()
        keep_programs()
    gc.collect()
    gc.freeze()
    # What freezes for a while, as a simulation does, would thaw these for the rest of the run.
    gc.unfreeze = lambda: None


def keep_programs(most: int = 100) -> None:
    """Keep the programs that were compiled last when their engine is closed: tests build equal
    engines one after the other."""
    from sharding import shared

    class Kept(WeakValueDictionary[Any, Any]):
        last = deque[Any](maxlen=most)

        def setdefault(self, key: Any, value: Any = None) -> Any:
            self.last.append(found := super().setdefault(key, value))
            return found

    shared._KEPT = Kept()
