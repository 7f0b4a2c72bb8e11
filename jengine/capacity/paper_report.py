"""Shows a plan on paper: as text with its assumptions, or as JSON.

In: a Paper. Out: text, or data for JSON. Must not decide what fits or how long a step takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from jengine.capacity.cpu_nodes import PANEL
from jengine.capacity.device_memory import gigabytes
from jengine.capacity.paper import GIGA, USUAL_TP, Paper
from jengine.capacity.step_estimate import StepTime


def as_json(paper: Paper) -> dict[str, Any]:
    """For programs: bytes, seconds, tokens per second."""
    memory, timing = paper.memory, paper.timing
    decode, prefill = timing.decode(paper.work), timing.prefill(paper.work)
    return {
        "model": paper.name,
        "dtype": memory.config.dtype,
        "device": dataclasses.asdict(timing.device),
        "layout": dataclasses.asdict(memory.layout),
        "work": dataclasses.asdict(paper.work),
        "fits": paper.fits,
        "bytes_a_device": {
            "usable": memory.usable,
            "weights": memory.weights,
            "on_host": memory.on_host,
            "arriving": memory.arriving,
            "row_state": memory.row_state,
            "scratch": memory.scratch,
            "cache": memory.cache,
            "cache_token": memory.token_bytes,
        },
        "cache_tokens": max(memory.cache, 0) // memory.token_bytes,
        "requests_that_fit": paper.requests,
        "smallest_tp": paper.smallest_tp,
        "decode": step_json(decode),
        "prefill": step_json(prefill),
        "seconds_a_token": memory.layout.pp * decode.expected,
        "decode_tokens_a_second": timing.tokens_a_second(paper.work, decode.expected),
        "prefill_tokens_a_second": memory.layout.dp * prefill.tokens / prefill.expected,
        "assumptions": list(assumptions(paper)),
    }


def step_json(step: StepTime) -> dict[str, Any]:
    """One step's time, with its ratio to the floor."""
    return {**dataclasses.asdict(step), "over_floor": step.expected / step.floor}


def as_text(paper: Paper) -> str:
    """The whole plan as lines of text."""
    parts = (heading, memory_rows, advice, times, notes)
    return "\n".join(line for part in parts for line in part(paper))


def heading(paper: Paper) -> Iterator[str]:
    """The model, the devices and the work."""
    config, layout = paper.memory.config, paper.memory.layout
    device = paper.timing.device
    shape = f"{config.architecture}, {len(config.layers)} layers, {config.dtype}"
    yield f"{paper.name} ({shape}) on {layout.devices} x {device.name}"
    spread = f", experts over {layout.ep} devices" if layout.ep else ""
    divided = f" (dcp {layout.dcp})" * (layout.dcp > 1) + f" x pcp {layout.pcp}" * (layout.pcp > 1)
    hosts = "1 host" if layout.hosts == 1 else f"{layout.hosts} hosts"
    yield (
        f"tp {layout.tp}{divided} x pp {layout.pp} x dp {layout.dp}{spread}, {hosts} of "
        f"{layout.devices_a_host}; {paper.work.batch} requests per replica, "
        f"{paper.work.context:,} tokens each"
        + (f", of which the first {paper.work.shared:,} are the same" if paper.work.shared else "")
    )


def memory_rows(paper: Paper) -> Iterator[str]:
    """Lines about one device's memory by use."""
    memory, device = paper.memory, paper.timing.device
    share = memory.usable / device.memory
    yield ""
    yield "Memory of one device"
    yield row("usable", gigabytes(memory.usable), f"{share:.0%} of {gigabytes(device.memory)}")
    detail = f"layers {memory.stage[0]} to {memory.stage[-1]}" * (memory.layout.pp > 1)
    yield row("weights", gigabytes(memory.weights), detail)
    if memory.on_host:
        count, layers = len(memory.host_layers), len(memory.stage)
        detail = f"of {gigabytes(memory.on_host)} in the host's memory, {count} of {layers} layers"
        yield row("arriving", gigabytes(memory.arriving), detail)
    rows = memory.schedule.sampler_rows
    detail = f"penalties, biases and masks of {rows} requests"
    if memory.scored_prompts is not None:
        detail += f", hidden states of {memory.scored_prompts[0]:,} prompt tokens"
    yield row("row state", gigabytes(memory.row_state), detail)
    step = f"a step of {memory.schedule.max_num_batched_tokens:,} tokens, estimated"
    yield row("scratch", gigabytes(memory.scratch), step)
    if memory.cache <= 0:
        yield row("cache", "nothing", f"{gigabytes(-memory.cache)} too much: it does not fit")
        return
    yield row("cache", gigabytes(memory.cache), f"{gigabytes(memory.token_bytes)} per token")
    yield row("", f"{memory.cache // memory.token_bytes:,}", "tokens fit")
    fit = f"requests of {paper.work.context:,} tokens fit"
    yield row("", f"{paper.requests:,}", fit if paper.fits else f"{fit}: fewer than asked for")


def advice(paper: Paper) -> Iterator[str]:
    """If the work does not fit: the tensor parallelism with which it does."""
    if paper.fits:
        return
    yield ""
    if paper.smallest_tp is None:
        most = USUAL_TP[-1]
        yield f"It does not fit with --tp up to {most} either: lower --batch or --context."
    else:
        yield f"The smallest --tp that fits is {paper.smallest_tp}."


def times(paper: Paper) -> Iterator[str]:
    """Step times and tokens per second, if the work fits."""
    if not paper.fits:
        return
    timing, layout = paper.timing, paper.memory.layout
    decode, prefill = timing.decode(paper.work), timing.prefill(paper.work)
    yield from step_rows(f"Decode: a step of {decode.tokens} requests", decode)
    each = layout.pp * decode.expected
    yield row("per token", milliseconds(each), f"for one request: {1 / each:,.0f} tokens/s")
    total = timing.tokens_a_second(paper.work, decode.expected)
    yield row("in all", f"{total:,.0f}", "tokens/s of all replicas")
    yield from step_rows(f"Prefill: a step of {prefill.tokens:,} prompt tokens", prefill)
    total = layout.dp * prefill.tokens / prefill.expected
    yield row("in all", f"{total:,.0f}", "prompt tokens/s of all replicas")


def notes(paper: Paper) -> Iterator[str]:
    """The assumptions as a list."""
    yield ""
    yield "Assumptions"
    yield from (f"  - {line}" for line in assumptions(paper))


def assumptions(paper: Paper) -> Iterator[str]:
    """Every number and simplification behind the plan that is not a shape."""
    assumed, device, layout = paper.timing.assumed, paper.timing.device, paper.memory.layout
    if device.cores:
        yield from node_assumptions(paper)
        return
    yield (
        f"{device.name}: {device.bandwidth / 1e12:.2f} TB/s, {device.flops / 1e12:,.0f} "
        f"TFLOP/s bfloat16, {device.link_name} {device.link / GIGA:,.0f} GB/s one way "
        f"({device.source})"
    )
    yield (
        f"expected: {assumed.bandwidth_share:.0%} of that bandwidth and "
        f"{assumed.flops_share:.0%} of that arithmetic are reached; the floor takes all of it"
    )
    yield (
        f"launches: {assumed.decode_launches:g} kernels per layer in a decode step and "
        f"{assumed.prefill_launches:g} with prompt tokens, as compiled for an H200 "
        f"(python -m jengine.bench.gpu_proof); {assumed.between_launches * 1e6:g} us between two, "
        "which is not measured"
    )
    if paper.memory.on_host:
        yield (
            f"layers in the host's memory: copied at {device.host_link / GIGA:g} GB/s (PCIe), "
            f"{assumed.bandwidth_share:.0%} of which are reached, while others run"
        )
    yield "scratch: 6 hidden states and 3 MLP widths per token, 3 rows of logits, in float32"
    if layout.tp > 1:
        yield (
            "all-reduces: two per layer and one for the embedding, of hidden states in bfloat16 "
            "(float32 where the model is not), ring algorithm, "
            f"{assumed.link_latency * 1e6:g} us each before the first byte; none overlaps with "
            "other work"
        )
    if layout.dcp > 1:
        yield (
            "divided caches: per layer that reads all tokens an all-gather of queries, one of "
            "log-sum-exps and a reduce-scatter of results in float32"
        )
    if layout.pcp > 1:
        yield (
            "divided steps: every group of devices reads all weights and has the whole cache; per "
            "layer one all-gather of keys and one of values (of latent attention one), and logits "
            "in every group"
        )
    if layout.hosts > 1:
        yield (
            f"network: {assumed.network / GIGA:g} GB/s one way for each device, "
            f"{assumed.network_latency * 1e6:g} us; replicas exchange nothing in a step"
            + " but tokens with experts"
            * (layout.ep > 0)
        )
    if layout.ep:
        yield (
            "experts on all devices: every replica sends as many tokens at the same time, in "
            "bfloat16, to devices chosen evenly; no step waits for a slower replica, and nothing "
            "overlaps with the exchange"
        )
    if layout.pp > 1:
        yield (
            "stages: layers one after the other, vocabulary spread over all stages, as many "
            "plans in flight as stages, all of one size; the floor is of the fullest stage"
        )
    if paper.memory.config.has_experts:
        yield (
            "experts: every token picks its own at random, and only what is picked is read and "
            "multiplied; without Triton, XLA does more on GPUs (it expands grouped matmuls densely)"
        )


def node_assumptions(paper: Paper) -> Iterator[str]:
    """The same of memory nodes of CPUs."""
    assumed, device, nodes = paper.timing.assumed, paper.timing.device, paper.memory.layout.dp
    yield (
        f"{device.name}: {device.bandwidth / GIGA:,.0f} GB/s, {device.flops / 1e12:,.1f} TFLOP/s "
        f"bfloat16 ({device.source}): modelled, as no such machine was measured"
    )
    yield (
        f"expected: {assumed.bandwidth_share:.0%} of that bandwidth, as tasks are whole panels of "
        f"{PANEL} outputs, and {assumed.flops_share:.0%} of that arithmetic; the floor takes all"
    )
    yield (
        f"launches: {assumed.decode_launches:g} kernel calls a layer, of each "
        f"{assumed.between_launches * 1e6:.0f} us until enough threads run to read at the memory's "
        "rate; those that still spin are there sooner, and small calls take fewer threads"
    )
    if nodes > 1:
        yield (
            f"one replica on each of {nodes} nodes: numactl --cpunodebind=N --membind=N jengine "
            "serve ..., and jengine route before them; a replica over several nodes would read far "
            "memory, which is not modelled"
        )


def row(name: str, amount: str, detail: str = "") -> str:
    """One line of the table."""
    return f"  {name:<11}{amount:>12}  {detail}".rstrip()


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds."""
    return f"{seconds * 1e3:.2f} ms"


def step_rows(title: str, step: StepTime) -> Iterator[str]:
    """The parts of one step's time."""
    yield ""
    yield title
    read = f"{gigabytes(step.weights_read)} of weights, {gigabytes(step.cache_read)} of cache"
    why = f"read {read}" if step.memory_bound else f"{step.operations / 1e12:,.1f} TFLOP"
    yield row("floor", milliseconds(step.floor), why)
    if step.host_read:
        yield row("", "", f"{gigabytes(step.host_read)} of weights come from the host meanwhile")
    if step.cache_saved:
        yield row("", "", f"{gigabytes(step.cache_saved)} of cache less, as requests read together")
    yield row("launches", milliseconds(step.launches))
    for one in step.exchanges:
        detail = f"{one.count} {one.what}, {gigabytes(one.bytes)} sent per device, {one.link}"
        yield row("exchange", milliseconds(one.seconds), detail)
    yield row("expected", milliseconds(step.expected), f"{step.expected / step.floor:.2f} x floor")
