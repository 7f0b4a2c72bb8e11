"""Compiles one step for an absent H200; prints a summary of XLA's program as JSON.

    python -m jengine.bench.gpu_proof.steps 0 DUMP

The number is a step case. The environment must be `device.environment(DUMP)`: XLA reads it when it
is loaded. Needs jax's CUDA plugin and triton, and no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies

from jengine.assembly.device_defaults import DEVICE_DEFAULTS, JOINED_TILE
from jengine.assembly.schedule_sizes import prefill_tile
from jengine.bench.gpu_proof.cases import StepCase, step_cases
from jengine.bench.gpu_proof.device import H200
from jengine.config import CacheConfig, ModelConfig, cache_groups
from jengine.models.published import PUBLISHED
from jengine.models.registry import model_config
from jengine.models.stages import stage_layout
from jengine.quantization.backends import matmul_backend
from jengine.runner.programs.compiler import StepCompiler
from jengine.runner.programs.compiler_options import CompilerChoices
from jengine.runner.sizing import held_by, stages_of
from jengine.runner.step.leaves import LeafOrder
from jengine.runner.step.state import empty_state, placed_state, state_bytes
from jengine.runner.variants.buckets import Bucket, Ladders, StepShapes
from jengine.runner.variants.features import variants
from jengine.weights.abstract import abstract_model
from jengine.weights.stages import StagePlaces
from pallas_kernels.prefill_attention import JOINING
from sharding.mesh import engine_mesh
from sharding.placement import Placement

BLOCK_SIZE = 16
MAX_ROWS = 64
PREFILL_TOKENS = 2048
# Names of our kernels in XLA's thunk list.
KERNEL_TARGET = "triton_kernel_call_ffi"
# A line of XLA's list of thunks: deeper ones are inside a command buffer or a loop.
THUNK = re.compile(r"( *)\d+: (k\w+)")
# Names of fusions that only move parts of arrays.
MOVES = re.compile(r"slice|concatenate")
COLLECTIVE = re.compile("kAll|kCollective|kReduceScatter|kPartitionId|kReplicaId")
# Kinds that only hold others, or that happen on the host.
NO_LAUNCH = {"kCommandBuffer", "kSequential", "kWhile", "kConditional", "kAsyncStart", "kAsyncDone"}


def compiler_for(case: StepCase, config: ModelConfig, devices: np.ndarray) -> StepCompiler:
    """The engine's own compiler of steps, over shapes without data."""
    placement = Placement(engine_mesh(devices, tuple(spec.kv_heads for spec in config.cache_specs)))
    layout = stage_layout(config, case.stages)
    groups = cache_groups(config.cache_specs[: layout.num_slots])
    rows = max(MAX_ROWS, case.decode_rows)
    blocks = case.cache_tokens // BLOCK_SIZE
    run = prefill_tile(config, DEVICE_DEFAULTS["gpu"])
    tile = JOINED_TILE if case.stages == 1 and case.attention in JOINING else run
    shapes = StepShapes(
        groups, BLOCK_SIZE, tile, rows, case.max_model_len,
        attention=case.attention, packed_tables=case.stages > 1, joined_tiles=run // tile,
    )  # fmt: skip
    prompts = max(PREFILL_TOKENS, case.prefill_tokens)
    ladders = Ladders((rows,), (prompts,), (shapes.max_pages,))
    cache = CacheConfig(groups, BLOCK_SIZE, (blocks,) * len(groups))
    held = held_by(placement, ladders, config.hidden_size)
    sizes = (rows, config.vocab_size, case.max_model_len)
    state = jax.eval_shape(lambda: empty_state(cache, jnp.bfloat16, *sizes, held))
    places, backend = StagePlaces(placement, layout), matmul_backend(case.attention, pack=True)
    order = LeafOrder(abstract_model(config), places, backend)
    return StepCompiler(
        shapes, order.rebuild, order.shapes(), placed_state(state, placement), placement,
        stages_of(order, ladders),
    )  # fmt: skip


def compiled_step(case: StepCase) -> tuple[Any, int]:
    """The executable, and the bytes of cache on each device."""
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=H200, topology=f"1x1x{case.devices}"
    )
    config = model_config(PUBLISHED[case.model])
    devices = np.array(topology.devices).reshape(case.stages, -1)
    compiler = compiler_for(case, config, devices)
    pages = -(-case.max_model_len // BLOCK_SIZE)
    bucket = Bucket(case.decode_rows, case.prefill_tokens, pages)
    lowered = compiler.lower(bucket, variants(5, "raw_logprobs")[case.variant])
    choices = CompilerChoices(case.captured, case.matmuls)
    options = choices.options(devices.flat[0], bucket.num_tokens)
    return lowered.compile(compiler_options=options), state_bytes(compiler.state.caches)


def program_facts(compiled: Any, dump: Path, case: StepCase, cache_bytes: int) -> dict[str, Any]:
    """Launches, command buffers, copies and memory of a compiled step."""
    text = compiled.as_text()
    memory = compiled.memory_analysis()
    layers = -(-PUBLISHED[case.model]["num_hidden_layers"] // case.stages)  # of one device
    found = thunks(dump)
    launches = found.launches
    copies = [size for size in copied_bytes(text) if size >= cache_bytes // (2 * layers)]
    return {
        "launches": launches.total(),
        "launches_a_layer": round(launches.total() / layers, 1),
        "moves_a_layer": found.moves // layers,
        "kernel_calls": text.count(f'custom_call_target="{KERNEL_TARGET}"'),
        "command_buffers": found.buffers,
        "outside_command_buffers": found.outside,
        "collectives_outside": found.collectives_outside,
        "rematerialized": len(re.findall(r"%\S*remat\S* =", text)),
        "cache_copies": len(copies),
        "cache_gb": round(cache_bytes / 1e9, 2),
        "cache_aliased": memory.alias_size_in_bytes >= cache_bytes,
        "temporary_mb": round(memory.temp_size_in_bytes / 1e6, 1),
        "thunks": dict(launches.most_common()),
    }


class Thunks(NamedTuple):
    """What XLA's list of thunks shows of a step."""

    launches: Counter[str]  # by kind
    buffers: int  # command buffers
    outside: int  # launches outside of them, without collectives
    collectives_outside: int
    moves: int  # slices and concatenations


def thunks(dump: Path) -> Thunks:
    """Read XLA's list."""
    (listing,) = dump.glob("*step.thunk_sequence_after_thunk_passes.txt")
    lines = [line for line in listing.read_text().splitlines() if THUNK.match(line)]
    found = [THUNK.match(line) for line in lines]
    kinds = [(len(match[1]), match[2]) for match in found if match]
    launches = Counter(kind for _, kind in kinds if kind not in NO_LAUNCH)
    buffers = sum(kind == "kCommandBuffer" for _, kind in kinds)
    outside = [kind for depth, kind in kinds if depth == 0 and kind not in NO_LAUNCH]
    collectives = sum(COLLECTIVE.match(kind) is not None for kind in outside)
    moves = sum(MOVES.search(line.partition("]")[2]) is not None for line in lines)
    return Thunks(launches, buffers, len(outside) - collectives, collectives, moves)


def copied_bytes(text: str) -> list[int]:
    """Bytes of every array that the program copies in a separate operation."""
    found = re.findall(r"= \(?(\w+?)(\d+)?\[([\d,]*)\]\S*(?: [^=]*?)? copy(?:-start)?\(", text)
    return [
        math.prod(int(size) for size in sizes.split(",") if size) * int(bits or 8) // 8
        for _, bits, sizes in found
    ]


def main() -> None:
    """Print one object as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("number", type=int)
    parser.add_argument("dump", type=Path)
    args = parser.parse_args()
    case = list(step_cases())[args.number]
    compiled, cache_bytes = compiled_step(case)
    facts = program_facts(compiled, args.dump, case, cache_bytes)
    print(json.dumps({"step": str(case), **facts}))


if __name__ == "__main__":
    main()
