"""The proof of FlashAttention-4's kernels as tables, beside Triton's of the same. No jax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jengine.pictures.page import Table, as_markdown

# Name, then of each package: registers, spills, matmuls of warp groups, bulk copies.
KERNEL_COLUMNS = (
    "heads of a KV head, head size, mask", "capability", "registers", "spill instructions",
    "matmuls of warp groups", "bulk copies", "small copies", "Triton: registers",
    "spilled bytes", "matmuls of warp groups",
)  # fmt: skip
STEP_COLUMNS = {
    "step": "step",
    "launches": "launches",
    "launches_a_layer": "a layer",
    "command_buffers": "command buffers",
    "outside_command_buffers": "launches outside",
    "cache_copies": "cache copies",
    "temporary_mb": "temporaries MB",
}


def markdown(result: Mapping[str, Any], tritons: Mapping[str, Any]) -> str:
    """Kernels, then steps. `tritons`: the kept proof of Triton's kernels."""
    names = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    steps = ([step[key] for key in STEP_COLUMNS] for step in result["steps"])
    parts = (
        f"Compiled without a GPU; nothing was run or timed. {names}.",
        Table(KERNEL_COLUMNS, kernel_rows(result, tritons)),
        Table(list(STEP_COLUMNS.values()), steps),
    )
    return as_markdown(*parts) + "\n"


def kernel_rows(result: Mapping[str, Any], tritons: Mapping[str, Any]) -> Iterator[list[Any]]:
    """One line per geometry and capability; empty where Triton's proof has no such kernel."""
    known = {
        (row["case"], row["capability"]): row
        for row in tritons["kernels"]
        if row["kernel"] == "prefill_tiles" and row.get("joined", 1) == 1
    }
    for row in result["kernels"]:
        other = known.get((triton_case(row), row["capability"]), {})
        yield [
            named(row), f"{row['capability'] / 10:.1f}", row["registers"], row["spills"],
            row["matmuls"], row["bulk_copies"], row["small_copies"],
            *(other.get(key, "") for key in ("registers", "spilled_bytes", "wgmma")),
        ]  # fmt: skip


def named(row: Mapping[str, Any], *, with_device: bool = False) -> str:
    """A geometry in words."""
    window = "causal" if row["window"] is None else f"window {row['window']}"
    dtype = "" if row["dtype"] == "bfloat16" else f", {row['dtype']}"
    group = row["heads"] // row["kv_heads"]
    device = f" on {row['capability'] / 10:.1f}" if with_device else ""
    return f"{group}, {row['head_dim']}, {window}{', sinks' * row['has_sinks']}{dtype}{device}"


def triton_case(row: Mapping[str, Any]) -> str:
    """The name of the same case in Triton's proof, whose blocks have 16 tokens."""
    group = row["heads"] // row["kv_heads"]
    options = " all options" * (row["window"] is not None or row["has_sinks"])
    return f"{row['dtype']} dim {row['head_dim']} group {group} block 16{options}"
