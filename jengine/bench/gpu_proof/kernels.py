"""Compiles every case's kernels for one device; prints the assembler's report as JSON.

    python -m jengine.bench.gpu_proof.kernels 90

Needs triton, which ships an assembler, and neither a GPU nor jax's CUDA plugin.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import triton

from jengine.assembly.sizes.device_defaults import JOINED_TILE, SHORTEST_TILE
from jengine.bench.attention_shapes import USUAL, AttentionShape, attention_shapes
from jengine.bench.gpu_proof import assembly
from jengine.bench.gpu_proof.cases import (
    LONGEST,
    MANY_ROWS,
    PAGES,
    ROWS,
    ExpertsCase,
    LatentCase,
    RecurrentCase,
    coded_cases,
    expert_cases,
    is_compiled,
    latent_cases,
    recurrent_cases,
    sample_cases,
)
from jengine.bench.gpu_proof.coded import coded_calls
from jengine.bench.gpu_proof.kernel_calls import shape, traced
from jengine.config import RECURRENT, DeltaConfig, ExpertsConfig, Mamba2Config
from jengine.layers.delta_rule import EPS
from jengine.models.reading.published import PUBLISHED
from jengine.models.registry import model_config
from jengine.runner.step.attention_backend import CODES
from pallas_kernels.cache_write import rotate_and_write, write_cache
from pallas_kernels.cuda_devices import DEVICES, ptx_of_cuda
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.grouped_matmul import combine_rows, multiply_tokens, sort_by_group
from pallas_kernels.latent_attention import latent_attention
from pallas_kernels.launch.bridge import compile_kernel, pointer_types
from pallas_kernels.launch.call import launch_for
from pallas_kernels.layout import cache_shape, entries_shape
from pallas_kernels.prefill_attention import prefill_attention, tokens_of_tile
from pallas_kernels.recurrent_decode import delta_step, state_space_step
from pallas_kernels.token_sampling import sample_tokens

# Constants that tell two programs of one kernel apart for a reader.
SHOWN = ("CODES", "TOKENS", "PART_TOKENS", "SLOTS", "TILE_ROWS", "TILE_COLUMNS", "TILE_DEPTH")


class Resources(NamedTuple):
    """Registers, shared memory and spills of one kernel program."""

    registers: int  # per thread
    spilled_bytes: int  # per thread, stored and loaded
    shared_bytes: int


def assembler(capability: int) -> str:
    """Triton's assembler, or the second one that it ships where the first knows no such device."""
    tools = triton.knobs.nvidia
    is_known = ptx_of_cuda(tools.ptxas.version) >= DEVICES[capability].ptx
    return (tools.ptxas if is_known else tools.ptxas_blackwell).path


def resources(ptx: str, shared_bytes: int, capability: int) -> Resources:
    """Assemble PTX with ptxas and parse its report."""
    # Matrix instructions of Hopper and later belong to the `a` variants of an architecture.
    architecture = f"sm_{capability}" + "a" * (capability >= 90)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [assembler(capability), "-v", f"--gpu-name={architecture}", str(source)]
        done = subprocess.run(  # noqa: S603
            [*command, "-o", str(Path(folder) / "kernel.cubin")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"ptxas for {architecture} failed:\n{done.stderr}")
    registers = re.search(r"Used (\d+) registers", done.stderr)
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    if registers is None or spilled is None:
        raise RuntimeError(f"ptxas reports in a way that is not known here:\n{done.stderr}")
    return Resources(int(registers[1]), int(spilled[1]) + int(spilled[2]), shared_bytes)


def calls(case: AttentionShape) -> Iterator[Any]:
    """Kernel calls of a case's operations, as equations of a jaxpr."""
    heads = case.kv_heads * case.group
    kind = CODES[case.codes] if case.codes else jnp.dtype(case.dtype)
    sizes = 2, 10_000, case.block_size, case.kv_heads, case.head_dim
    cache = shape(cache_shape(*sizes, kind), kind.name)
    integer = partial(shape, dtype="int32")
    options: dict[str, Any] = {
        "head_dim": case.head_dim, "dtype": case.dtype, "implementation": "triton",
        "window": case.window, "soft_cap": case.soft_cap,
        "sinks": jnp.zeros(heads) if case.sinks else None,
    }  # fmt: skip
    run = max(tokens_of_tile(case.group), SHORTEST_TILE)
    tokens, tiles = ROWS * run, ROWS * run // JOINED_TILE
    new = shape((ROWS, case.kv_heads, case.head_dim), "float32")
    made = "bfloat16" if case.dtype == "bfloat16" else "float32"  # as `GpuWeights` does
    qkv = shape((ROWS, case.kv_heads, case.group + 2, case.head_dim), made)
    half = shape((ROWS, case.head_dim // 2), "float32")
    weight = shape((case.head_dim,), case.dtype)
    decode = partial(decode_attention, reads_together=True, **options)
    yield from traced(
        decode, shape((ROWS, heads, case.head_dim), case.dtype), cache, integer(()),
        integer((ROWS, PAGES)), integer((ROWS,)), integer((ROWS,)),
    )  # fmt: skip
    if case == USUAL:
        yield from traced(
            decode, shape((MANY_ROWS, heads, case.head_dim), case.dtype), cache, integer(()),
            integer((MANY_ROWS, LONGEST // case.block_size)), integer((MANY_ROWS,)),
            integer((MANY_ROWS,)),
        )  # fmt: skip
    yield from traced(
        lambda *arrays: prefill_attention(
            *arrays[:6], runs=arrays[6], joined=run // JOINED_TILE,
            ends=arrays[7] if case.sinks else None, **options,
        ),
        shape((tokens, heads, case.head_dim), case.dtype), cache, integer(()),
        integer((tiles, PAGES)), integer((tiles,)), integer((tokens,)), integer((2 * ROWS + 1,)),
        integer((tiles,)),
    )  # fmt: skip
    yield from traced(
        partial(write_cache, implementation="triton"), cache, integer(()), new, new,
        integer((ROWS,)),
    )  # fmt: skip
    yield from traced(
        lambda cache, layer, qkv, slots, cos, sin, q_weight, k_weight: rotate_and_write(
            cache, layer, qkv, slots, rotation=(cos, sin), norms=(q_weight, k_weight),
            implementation="triton",
        ),
        cache, integer(()), qkv, integer((ROWS,)), half, half, weight, weight,
    )  # fmt: skip


def latent_calls(case: LatentCase) -> Iterator[Any]:
    """The kernel call of latent attention."""
    tokens, width, integer = (
        ROWS * case.queries,
        case.rank + case.rope,
        partial(shape, dtype="int32"),
    )
    yield from traced(
        partial(
            latent_attention, rank=case.rank, scale=0.1, dtype=case.dtype, implementation="triton"
        ),
        shape((tokens, case.heads, width), case.dtype),
        shape(entries_shape(2, 10_000, 16, width), case.dtype), integer(()),
        integer((ROWS, PAGES)), integer((ROWS,)), integer((tokens,)), integer((tokens,)),
    )  # fmt: skip


def recurrent_calls(case: RecurrentCase) -> Iterator[Any]:
    """The kernel call that updates the states of the first recurrent layer."""
    layers = model_config(PUBLISHED[case.model]).layers
    mixer = next(layer.mixer for layer in layers if isinstance(layer.mixer, RECURRENT))
    rows, integer = case.rows, partial(shape, dtype="int32")
    numbers = partial(shape, dtype="float32")
    heads, *sizes = mixer.cache.states[-1].shape
    heads //= case.devices
    states = numbers((2, 3 * rows, heads, *sizes))
    places = integer(()), integer((rows,)), integer((rows,))
    if isinstance(mixer, DeltaConfig):
        of_each = heads, mixer.share
        yield from traced(
            partial(delta_step, eps=EPS, implementation="triton"), states, *places,
            numbers((rows, heads, mixer.convolved)), *[numbers((rows, *of_each))] * 2,
            *[shape(of_each, "bfloat16")] * 2,
        )  # fmt: skip
        return
    assert isinstance(mixer, Mamba2Config)
    yield from traced(
        partial(state_space_step, limits=mixer.time_limits, implementation="triton"),
        states, *places, numbers((rows, heads, mixer.head_dim)),
        numbers((rows, 2, mixer.groups, mixer.state_size)), integer((heads,)),
        numbers((rows, heads)), *[shape((heads,), "bfloat16")] * 2,
    )  # fmt: skip


def sampling_calls(rows: int, vocab: int) -> Iterator[Any]:
    """The kernel calls that sample a token per row of logits."""
    settings = [shape((rows,), kind) for kind in ("float32", "int32", "float32", "float32")]
    yield from traced(
        partial(sample_tokens, implementation="triton"),
        shape((rows, vocab), "float32"), shape((rows, 2), "uint32"), *settings,
    )  # fmt: skip


def expert_calls(case: ExpertsCase) -> Iterator[Any]:
    """Kernel calls of a MoE layer; two of a kind where the sort is split in parts."""
    config = model_config(PUBLISHED[case.model])
    experts, hidden = config.layers[0].ffn, config.hidden_size
    assert isinstance(experts, ExpertsConfig)
    count, inner = experts.num_experts, experts.intermediate_size // case.devices
    use: dict[str, Any] = {"implementation": "triton"}

    def layer(x: Any, chosen: Any, scales: Any, gate_up: Any, down: Any) -> Any:
        groups = sort_by_group(chosen.reshape(-1), count, **use)
        inside = multiply_tokens(x, gate_up, groups, activation=experts.activation, **use)
        return combine_rows(inside, down, groups, scales, **use)

    picked = (case.tokens, experts.experts_per_token)
    yield from traced(
        layer, shape((case.tokens, hidden), case.dtype), shape(picked, "int32"),
        shape(picked, "float32"), shape((count, hidden, 2 * inner), case.dtype),
        shape((count, inner, hidden), case.dtype),
    )  # fmt: skip


def measured(equation: Any, capability: int) -> dict[str, Any]:
    """Resources of one kernel call on a device."""
    parameters = equation.params
    kernel, launch = parameters["kernel"], launch_for(parameters["launch"], capability)
    arrays = [*(variable.aval for variable in equation.invars), *parameters["out"]]
    compiled = compile_kernel(
        kernel, pointer_types(kernel, arrays), launch.constants, launch.num_warps,
        launch.num_stages, capability,
    )  # fmt: skip
    constants = dict(launch.constants)
    return {
        "kernel": kernel.__name__,
        "capability": capability,
        **{name.lower(): constants[name] for name in SHOWN if name in constants},
        "warps": launch.num_warps,
        "stages": launch.num_stages,
        **resources(compiled.ptx, compiled.shared_bytes, capability)._asdict(),
        **assembly.facts(compiled.ptx),
    }


def all_cases(capability: int, *, every: bool) -> Iterator[tuple[Any, Callable[[], Iterator[Any]]]]:
    """The device's cases, or every case, and what gives the kernel calls of each."""
    makers: list[tuple[Iterable[Any], Callable[[Any], Iterator[Any]]]] = [
        (attention_shapes(), calls),
        (latent_cases(), latent_calls),
        (recurrent_cases(), recurrent_calls),
        (sample_cases(), lambda case: sampling_calls(case.rows, case.vocab)),
        (expert_cases(), expert_calls),
        (coded_cases(), lambda case: coded_calls(case, capability)),
    ]
    for cases, calls_of in makers:
        for case in cases:
            if every or is_compiled(case, capability):
                yield case, partial(calls_of, case)


def main() -> None:
    """Print one JSON list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capability", type=int)
    parser.add_argument(
        "--only", nargs="+", default=[""], help="cases whose name holds one of these"
    )
    parser.add_argument("--every", action="store_true", help="not only what results are kept of")
    args = parser.parse_args()
    rows = [
        {"case": str(case), **measured(equation, args.capability)}
        for case, calls_of in all_cases(args.capability, every=args.every)
        if any(part in str(case) for part in args.only)
        for equation in calls_of()
    ]
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
