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

from jengine.assembly.sizes.device_defaults import DEVICE_DEFAULTS, JOINED_TILE
from jengine.assembly.sizes.schedule_sizes import prefill_tile
from jengine.bench.gpu_proof.cases import StepCase, step_cases
from jengine.bench.gpu_proof.context_parallel import group_facts
from jengine.bench.gpu_proof.device import H200
from jengine.bench.gpu_proof.from_host import (
    host_facts,
    places_for,
    shapes_for,
)
from jengine.bench.gpu_proof.quantized import config_of, plain_weights
from jengine.config import CacheConfig, ModelConfig, cache_groups
from jengine.lora.weights import adapted_weights
from jengine.models.stages import stage_layout
from jengine.quantization.backends import matmul_backend
from jengine.runner.programs.compiler import StepCompiler
from jengine.runner.programs.compiler_options import CompilerChoices
from jengine.runner.sizing import held_by, stages_of
from jengine.runner.step.adapter_rows import implementation_of
from jengine.runner.step.attention_backend import BASES, CODES
from jengine.runner.step.joined import JoinedReplicas
from jengine.runner.step.leaves import LeafOrder
from jengine.runner.step.program import AdapterProgram
from jengine.runner.step.state import empty_state, placed_state, state_bytes
from jengine.runner.variants.buckets import Bucket, Ladders, Slots, StepShapes
from jengine.runner.variants.features import variants, with_adapters
from jengine.runner.variants.parts import RUNS_TOKENS, Part
from jengine.weights.abstract import abstract_model
from jengine.weights.stage_places import StagePlaces
from pallas_kernels.decode_attention import CASCADING
from pallas_kernels.fa4.rules import BULK_BLOCK
from pallas_kernels.launch import kernel_calls, loading
from pallas_kernels.prefill_attention import JOINING
from sharding.mesh import engine_mesh
from sharding.placement import Placement
from sharding.replicas import mesh_of_replicas

BLOCK_SIZE = 16
MAX_ROWS = 64
RANK = 16  # of adapters
PREFILL_TOKENS = 2048
# Names of our kernels in XLA's thunk list.
KERNEL_TARGET = "triton_kernel_call_ffi"
OPAQUE = re.compile(rf'{KERNEL_TARGET}\(.*?opaque = "(.*?)"')
# A line of XLA's list of thunks: deeper ones are inside a command buffer or a loop.
THUNK = re.compile(r"( *)\d+: (k\w+)")
# Names of fusions that only move parts of arrays.
MOVES = re.compile(r"slice|concatenate")
# Where graphs end: at a collective, or where one in the background begins, and where it must end.
COLLECTIVE = re.compile("kAll|kRagged|kCollective|kReduceScatter|kPartitionId|kReplicaId|kAsync")
FP8_TARGET = 'custom_call_target="__cublas$lt$matmul$f8"'
# Kinds that only hold others, or that happen on the host.
NO_LAUNCH = {"kCommandBuffer", "kSequential", "kWhile", "kConditional", "kAsyncStart", "kAsyncDone"}


def compiler_for(case: StepCase, config: ModelConfig, devices: np.ndarray) -> StepCompiler:
    """The engine's step compiler, over abstract arrays."""
    whole = placement_of(case, config, devices)
    placement = whole.replicas[0]  # the one that the shapes of states and inputs are of
    layout = stage_layout(config, case.stages)
    groups = cache_groups(config.layer_specs[: layout.num_slots])
    rows = max(MAX_ROWS, case.decode_rows)
    block_size = block_tokens(case)
    blocks = case.cache_tokens // block_size
    run = prefill_tile(config, DEVICE_DEFAULTS["gpu"])
    joins = case.stages == case.groups == 1 and case.attention in JOINING
    joins = joins and not config.has_recurrent
    tile = JOINED_TILE if joins else run
    attention = BASES.get(case.attention, case.attention)
    shapes = StepShapes(
        groups, block_size, tile, rows, case.max_model_len,
        attention=attention, prompts=case.attention if case.attention in BASES else None,
        packed_tables=case.stages > 1, joined_tiles=run // tile,
        reads_together=attention in CASCADING, adapter_slots=case.adapters,
        chained=case.part is not Part.STEP,
    )  # fmt: skip
    prompts = max(PREFILL_TOKENS, case.prefill_tokens)
    ladders = Ladders((rows,), (prompts,), (shapes.max_pages,))
    # A state of a row and two that are kept, and blocks of all others.
    units = tuple(3 * rows if one.spec.is_state else blocks for one in groups)
    cache = CacheConfig(groups, block_size, units)
    held = held_by(placement, ladders, config.hidden_size)
    sizes = (rows, config.vocab_size, case.max_model_len)
    kind = CODES[case.codes] if case.codes else jnp.bfloat16
    kept = (prompts, config.hidden_size) if shapes.chained else None
    state = jax.eval_shape(lambda: empty_state(cache, kind, *sizes, held, prompts=kept))
    backend = matmul_backend(attention, pack=True)
    places = places_for(case, config, StagePlaces(whole, layout), backend)
    order = LeafOrder(abstract_model(config), places, backend)
    return StepCompiler(
        shapes, order.rebuild, shapes_for(order), placed_state(state, placement, groups), placement,
        stages_of(order, ladders),
        CompilerChoices(case.captured, case.matmuls, arriving=order.arriving),
        width=config.hidden_size,
        adapters=adapters_for(case, config, shapes, placement),
        joined=JoinedReplicas(whole) if whole.joint else None,
    )  # fmt: skip


def block_tokens(case: StepCase) -> int:
    """Tokens of a block on all devices, as in an engine with this backend."""
    return (BULK_BLOCK if case.attention == "fa4" else BLOCK_SIZE) * case.context


def placement_of(case: StepCase, config: ModelConfig, devices: np.ndarray) -> Placement:
    """Placement on a mesh of all devices, replicas of joint data parallelism included."""
    heads = tuple(spec.kv_heads for spec in config.cache_specs)
    parts = np.split(devices, case.replicas, axis=1)
    mesh = mesh_of_replicas([engine_mesh(part, heads, case.context, case.groups) for part in parts])
    exchange = case.experts or "allgather_reducescatter"
    return Placement(
        mesh, whole_experts=bool(case.experts), expert_exchange=exchange, joint=case.replicas > 1
    )


def adapters_for(
    case: StepCase, config: ModelConfig, shapes: StepShapes, placement: Placement
) -> AdapterProgram | None:
    """The adapter program over abstract arrays; None for cases without adapters."""
    if not case.adapters:
        return None
    implementation = implementation_of(shapes, placement)
    weights = adapted_weights(config, RANK, case.adapters, implementation=implementation)
    leaves = tuple(
        jax.ShapeDtypeStruct(
            stack.shape, jnp.bfloat16, sharding=placement.sharding(stack.axes, stack.shape)
        )
        for weight in weights.values()
        for stack in weight.stacks
    )
    return AdapterProgram(weights, leaves, implementation)


def compiled_step(case: StepCase) -> tuple[Any, int, int]:
    """The executable; per-device bytes of what it must not copy: the KV cache or, for heads,
    logits; and how many of its kernels are not loaded before a step runs."""
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=H200, topology=f"1x1x{case.devices}"
    )
    config = config_of(case)
    devices = np.array(topology.devices).reshape(case.stages, -1)
    compiler = compiler_for(case, config, devices)
    pages = -(-case.max_model_len // block_tokens(case))
    bucket = Bucket(case.decode_rows, case.prefill_tokens, pages)
    name = with_adapters(case.variant) if case.adapters else case.variant
    features = variants(5, "raw_logprobs", adapters=True)[name].of(case.part)
    size = size_of(case.part, bucket, compiler.shapes)
    traced = compiler.trace(size, features)
    lowered = traced.lower()
    first = loading(kernel_calls(traced.jaxpr.jaxpr), list(devices.flat)).lower(np.int32(0))
    unloaded = len(modules(lowered.as_text()) - modules(first.as_text()))
    options = compiler.choices.options(devices.flat[0], size.num_tokens)
    held = state_bytes(compiler.state.caches)
    if case.part not in RUNS_TOKENS:
        held = size.num_tokens * config.vocab_size * 4 // case.devices  # its logits
    return lowered.compile(compiler_options=options), held, unloaded


def modules(text: str) -> set[str]:
    """The kernels of a lowered program, each with its machine code and its grid."""
    return set(OPAQUE.findall(text))


def size_of(part: Part, bucket: Bucket, shapes: StepShapes) -> Bucket | Slots:
    """Bucket of a part that runs tokens; number of slots of one that runs sampled or scored
    rows."""
    if part in RUNS_TOKENS:
        return bucket
    return Slots(shapes.scored_at_once if part is Part.SCORE else shapes.num_slots(bucket))


def program_facts(compiled: Any, dump: Path, case: StepCase, cache_bytes: int) -> dict[str, Any]:
    """Launches, command buffers, copies and memory of a compiled step."""
    text = compiled.as_text()
    memory = compiled.memory_analysis()
    runs_layers = case.part in RUNS_TOKENS
    layers = -(-len(config_of(case).layers) // case.stages) if runs_layers else 1  # of one device
    found = thunks(dump, case.part)
    launches = found.launches
    copies = [size for size in copied_bytes(text) if size >= cache_bytes // (2 * layers)]
    return {
        "launches": launches.total(),
        "launches_a_layer": round(launches.total() / layers, 1),
        "moves_a_layer": found.moves // layers if runs_layers else 0,
        "fp8_matmuls": text.count(FP8_TARGET),
        "plain_weights": plain_weights(text, case),
        "weights_gb": round((memory.argument_size_in_bytes - cache_bytes) / 1e9, 2),
        "kernel_calls": text.count(f'custom_call_target="{KERNEL_TARGET}"'),
        "command_buffers": found.buffers,
        "outside_command_buffers": found.outside,
        "collectives_outside": found.collectives_outside,
        "rematerialized": len(re.findall(r"%\S*remat\S* =", text)),
        "cache_copies": len(copies),
        "cache_gb": round(cache_bytes / 1e9, 2),
        "cache_aliased": not runs_layers or memory.alias_size_in_bytes >= cache_bytes,
        "temporary_mb": round(memory.temp_size_in_bytes / 1e6, 1),
        "thunks": dict(launches.most_common()),
        **(host_facts(text, found.lines) if case.on_host else {}),
        **(group_facts(text) if case.groups > 1 else {}),
    }


class Thunks(NamedTuple):
    """Facts from XLA's thunk list of a step."""

    launches: Counter[str]  # by kind
    buffers: int  # command buffers
    outside: int  # launches outside of them, without collectives
    collectives_outside: int  # places where one ends a graph
    moves: int  # slices and concatenations
    lines: list[str]


def thunks(dump: Path, part: Part = Part.STEP) -> Thunks:
    """Parse XLA's thunk list of a part of a step."""
    (listing,) = dump.glob(f"*{part.value}.thunk_sequence_after_thunk_passes.txt")
    lines = [line for line in listing.read_text().splitlines() if THUNK.match(line)]
    found = [THUNK.match(line) for line in lines]
    kinds = [(len(match[1]), match[2]) for match in found if match]
    launches = Counter(kind for _, kind in kinds if kind not in NO_LAUNCH)
    buffers = sum(kind == "kCommandBuffer" for _, kind in kinds)
    top = [kind for depth, kind in kinds if depth == 0]
    ends = [kind for kind in top if COLLECTIVE.match(kind)]
    outside = [kind for kind in top if kind not in NO_LAUNCH and kind not in ends]
    moves = sum(MOVES.search(line.partition("]")[2]) is not None for line in lines)
    return Thunks(launches, buffers, len(outside), len(ends), moves, lines)


def copied_bytes(text: str) -> list[int]:
    """Bytes per array that the program copies in a separate operation."""
    found = re.findall(r"= \(?(\w+?)(\d+)?\[([\d,]*)\]\S*(?: [^=]*?)? copy(?:-start)?\(", text)
    return [
        math.prod(int(size) for size in sizes.split(",") if size) * int(bits or 8) // 8
        for _, bits, sizes in found
    ]


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("number", type=int)
    parser.add_argument("dump", type=Path)
    args = parser.parse_args()
    case = list(step_cases())[args.number]
    compiled, cache_bytes, unloaded = compiled_step(case)
    facts = program_facts(compiled, args.dump, case, cache_bytes)
    print(json.dumps({"step": str(case), **facts, "kernels_not_loaded": unloaded}))


if __name__ == "__main__":
    main()
