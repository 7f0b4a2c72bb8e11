"""Stage: steady-state steps of a warm engine.

Mixed steps; steps whose sizes alternate; and, under the profiler, steps of one size: time on the
device, kernels, and CUDA graphs that are updated or made again, of which there should be none.
`--soak` runs steps of one size for long, to see that none of them hangs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from jengine.api.llm import LLM
from jengine.bench.driver import Driver
from jengine.bench.gpu.cases import Sizes, sizes
from jengine.bench.gpu.device_trace import (
    GRAPH_INSTANTIATION,
    GRAPH_LAUNCH,
    GRAPH_UPDATE,
    KERNEL_LAUNCH,
    traced,
)
from jengine.bench.gpu.models import compiling, open_llm, shards, write_config
from jengine.bench.gpu.part import StageResult, run_stage
from jengine.bench.gpu.step_plans import StepPlans
from jengine.plan import Plan

# Kernels that a line names.
SLOWEST = 12
# Lines of a soak.
LAPS = 10


def measure(part: StageResult, args: argparse.Namespace) -> None:
    chosen = sizes(dry_run=args.dry_run)
    devices = shards(chosen.models[args.model]) if args.tensor_parallel else 1
    if args.tensor_parallel and devices == 1:
        part.leave_out("tensor parallelism", "there is one device")
        return
    folder = write_config(args.part.parent / "models" / args.model, chosen.models[args.model])
    most = max(rows for rows, _, _ in chosen.mixed) + 1
    grid = [(rows, 0) for rows in sorted({most, max(most // 8, 1)})]
    with open_llm(folder, chosen, grid, devices, **compiling(args)) as llm:
        if args.soak:
            soak(part, llm, chosen)
            return
        for rows, context, tokens in part.in_time(chosen.mixed):
            plans = StepPlans(Driver(llm), rows, context, tokens, chosen.steps)
            name = f"{rows} x {context} + {tokens}"
            if not plans.fit:
                part.leave_out(f"mixed {name}", "does not fit into the engine")
                continue
            with part.attempt("mixed", name):
                run(llm, plans.first())
                took = seconds(llm, plans.mixed, chosen.steps)
                part.add(what="mixed", case=name, ms=round(took * 1e3, 3),
                         tok_s=round((rows + tokens) / took, 1))  # fmt: skip
        with part.attempt("alternating", most):
            part.add(what="alternating", **alternating(llm, chosen, most))
        with part.attempt("steady", most):
            line = steady(llm, chosen, most)
            part.add(what="steady", **line)
            check_graphs(line)


def run(llm: LLM, *plans: Plan) -> None:
    """Queue plans and wait for the last."""
    runner = llm.engine.runners[0]
    handles = [runner.submit(plan) for plan in plans]
    handles[-1].result()


def seconds(llm: LLM, plan: Callable[[], Plan], steps: int) -> float:
    """Seconds per step of many queued ones, after an uncounted one."""
    run(llm, plan())
    began = time.perf_counter()
    run(llm, *(plan() for _ in range(steps)))
    return (time.perf_counter() - began) / steps


def alternating(llm: LLM, chosen: Sizes, most: int) -> dict[str, Any]:
    """Alternate steps of two sizes, and each size alone."""
    few, context = max(most // 8, 1), chosen.model_contexts[0]
    plans = StepPlans(Driver(llm), most, context, 0, 4 * chosen.steps)
    run(llm, plans.first())
    alone = [seconds(llm, partial(plans.decode, rows), chosen.steps) for rows in (few, most)]
    run(llm, plans.decode(few), plans.decode(most))
    began = time.perf_counter()
    run(llm, *(plans.decode(most if step % 2 else few) for step in range(2 * chosen.steps)))
    took = (time.perf_counter() - began) / (2 * chosen.steps)
    return {
        "case": f"{few} and {most} x {context}",
        "ms": round(took * 1e3, 3),
        "alone_ms": round(sum(alone) / 2 * 1e3, 3),
    }


def steady(llm: LLM, chosen: Sizes, rows: int) -> dict[str, Any]:
    """Decode steps of one size under the profiler."""
    context = chosen.model_contexts[0]
    plans = StepPlans(Driver(llm), rows, context, 0, 3 * chosen.steps)
    run(llm, plans.first())
    wall = seconds(llm, lambda: plans.decode(rows), chosen.steps)
    found = traced(lambda: run(llm, *(plans.decode(rows) for _ in range(chosen.steps))))
    line: dict[str, Any] = {
        "case": f"{rows} x {context}, {chosen.steps} steps",
        "ms": round(wall * 1e3, 3),
        "graph_launches": found.count(GRAPH_LAUNCH),
        "kernel_launches": found.count(KERNEL_LAUNCH),
        "graph_updates": found.count(GRAPH_UPDATE),
        "graphs_made": found.count(GRAPH_INSTANTIATION),
        "late_compiles": sum(one.after_warm_up for one in llm.ledger.entries.values()),
    }
    if found.device_seconds:
        line["device_ms"] = round(found.device_seconds / chosen.steps * 1e3, 3)
        line["kernels"] = found.slowest(SLOWEST)
    return line


def check_graphs(line: Mapping[str, Any]) -> None:
    """Fail if kernels were launched one by one, without any CUDA graph: then the trace is not of
    steps as served. Some versions of jax record no launch of either kind."""
    if line.get("kernel_launches") and not line["graph_launches"]:
        raise RuntimeError(
            f"{line['case']}: kernels ran on the device and no CUDA graph was launched. Look for "
            "why XLA captures none: kernels that jax's plugin cannot capture, or command buffers "
            "that are off (XLA_FLAGS)."
        )


def soak(part: StageResult, llm: LLM, chosen: Sizes) -> None:
    """Many steps of one size, with a line per tenth."""
    rows, context = 8 if llm.engine.schedule.max_num_seqs >= 8 else 1, chosen.model_contexts[0]
    steps = chosen.soak_steps // LAPS
    plans = StepPlans(Driver(llm), rows, context, 0, 0)
    run(llm, plans.first())
    for lap in part.in_time(range(LAPS)):
        with part.attempt("soak", lap):
            took = seconds(llm, lambda: plans.decode(rows), steps)
            part.add(what="soak", case=f"{rows} x {context}, step {(lap + 1) * steps:,}",
                     ms=round(took * 1e3, 3))  # fmt: skip


if __name__ == "__main__":
    run_stage(measure)
