"""Stage: a layer's matmuls by cuBLASLt against XLA's choice, for every number of tokens.

Out: a line per number of tokens and library, and DIR/tuning/xla_matmul.json with the faster one
before the earlier entries. `--install-tables` of the main program copies it into the checkout.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jengine.bench.gpu.case_inputs import random_normal
from jengine.bench.gpu.cases import Sizes, sizes
from jengine.bench.gpu.clock import Seconds, seconds_of
from jengine.bench.gpu.part import StageResult, run_stage, write_json
from jengine.bench.gpu.sweep import capability, noted
from jengine.runner.programs.compiler_options import WITHOUT_TRITON
from pallas_kernels.tuning import table
from pallas_kernels.xla_matmul import CUBLASLT, LIBRARIES

TABLE = "xla_matmul"


def measure(part: StageResult, args: argparse.Namespace) -> None:
    """Result lines as they come; the tuning table when all are measured or time is up."""
    chosen = sizes(dry_run=args.dry_run)
    faster: list[tuple[int, str]] = []
    for tokens in part.in_time(chosen.matmul_tokens):
        took: dict[str, Seconds] = {}
        for library in LIBRARIES:
            with part.attempt(f"matmuls by {library}", tokens):
                took[library] = time_layer(tokens, library, chosen)
                rate = operations(tokens, chosen) / took[library].best / 1e12
                part.add(what="matmuls", case=f"{tokens} tokens", implementation=library,
                         tflop_s=round(rate, 2), **took[library].as_microseconds())  # fmt: skip
        if len(took) == len(LIBRARIES):
            faster.append((tokens, min(took, key=lambda name: took[name].best)))
            faster.sort()
    if faster:
        folder = args.part.parent / "tuning"
        folder.mkdir(exist_ok=True)
        entries = table(TABLE)["entries"]
        entries[:] = [*entries_of(faster), *entries]
        write_json(folder / f"{TABLE}.json", noted(TABLE, args.dry_run))
        part.add(what="matmuls", best=dict(faster))


def entries_of(faster: list[tuple[int, str]]) -> list[dict[str, Any]]:
    """Table entries for this device; other token counts use the next larger one measured."""
    here = capability()
    entries: list[dict[str, Any]] = [
        {"when": {"capability": here, "tokens": {"most": tokens}}, "use": {"library": library}}
        for tokens, library in faster[:-1]
    ]
    return [*entries, {"when": {"capability": here}, "use": {"library": faster[-1][1]}}]


def time_layer(tokens: int, library: str, chosen: Sizes) -> Seconds:
    """Time one layer's matmuls in sequence, with the residual additions."""
    hidden, inner, qkv = chosen.matmul_widths
    shapes = ((hidden, qkv), (hidden, hidden), (hidden, 2 * inner), (inner, hidden))
    dtype = chosen.matmul_dtype
    weights = [
        random_normal(shape, dtype, seed) * jnp.asarray(shape[0] ** -0.5, dtype)
        for seed, shape in enumerate(shapes)
    ]
    x = random_normal((tokens, hidden), "float32", 9)
    options: dict[str, Any] = {WITHOUT_TRITON: False} if library == CUBLASLT else {}
    run = layers_of(chosen.calls)
    compiled = jax.jit(run).lower(x, *weights).compile(compiler_options=options)
    return seconds_of(compiled, x, *weights, repeats=chosen.repeats, calls=chosen.calls)


def layers_of(calls: int) -> Callable[..., Array]:
    """Layers with the step's dtypes: bfloat16 between matmuls, float32 residual stream."""

    def run(x: Array, *weights: Array) -> Array:
        def times(x: Array, weight: Array, dtype: Any) -> Array:
            return jnp.dot(x.astype(weight.dtype), weight, preferred_element_type=dtype)

        first, second, up, down = weights
        for _ in range(calls):
            mixed = times(x, first, first.dtype)[:, : x.shape[1]]
            x = x + times(mixed, second, jnp.float32)
            gate, value = jnp.split(times(x, up, up.dtype), 2, axis=1)
            x = x + times(jax.nn.silu(gate) * value, down, jnp.float32)
        return x

    return run


def operations(tokens: int, chosen: Sizes) -> int:
    """FLOPs of one layer."""
    hidden, inner, qkv = chosen.matmul_widths
    return 2 * tokens * hidden * (qkv + hidden + 3 * inner)


if __name__ == "__main__":
    run_stage(measure)
