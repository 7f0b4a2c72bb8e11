"""Chooses a library of the kernels that came with the wheel, so that nothing has to be compiled.

In: the features that Linux reports of the processor. Out: the library's path. `.ci/wheels.py`
compiles what BUILDS lists. Must not start JAX.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import NamedTuple

from pallas_kernels.cpu.compiler import INTERFACE, headers, processor_features, source_digest

FOLDER = Path(__file__).with_name("prebuilt")
MAJOR = re.compile(r"#define XLA_FFI_API_MAJOR (\d+)")
# Levels of the x86-64 ABI, as /proc/cpuinfo names their features.
V2 = frozenset(("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"))
V3 = V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


class Build(NamedTuple):
    """A library for all processors of `machine` that report the features `needs`."""

    name: str
    machine: str
    processor: str  # the cross-compiler's name of the minimum processor
    needs: frozenset[str] = frozenset()


BFLOAT16 = V4 | {"avx512_bf16", "avx512_vnni"}
# The fastest first.
BUILDS = (
    Build(
        "amx",
        "x86_64",
        "x86_64_v4+avx512bf16+avx512vnni+amx_tile+amx_bf16+amx_int8",
        BFLOAT16 | {"amx_tile", "amx_bf16", "amx_int8"},
    ),
    Build("avx512-bf16", "x86_64", "x86_64_v4+avx512bf16+avx512vnni", BFLOAT16),
    Build("avx512", "x86_64", "x86_64_v4", V4),
    Build("avx2", "x86_64", "x86_64_v3", V3),
    Build("basic", "x86_64", "x86_64"),
    Build("neon", "aarch64", "generic"),
)


def prebuilt_library() -> Path | None:
    """The wheel's fastest library for this processor and the installed jaxlib, or None."""
    features = set(processor_features().split())
    fitting = (
        FOLDER / file_name(build)
        for build in BUILDS
        if build.machine == platform.machine() and build.needs <= features
    )
    return next((file for file in fitting if file.is_file()), None)


def file_name(build: Build) -> str:
    """File name of a build, with the source's hash and XLA's FFI major version: within a major
    version, newer XLA runtimes call handlers of older headers."""
    major = MAJOR.search((headers() / INTERFACE).read_text(encoding="utf-8"))
    return f"{build.name}-{source_digest()}-xla{major[1] if major else 'unknown'}.so"
