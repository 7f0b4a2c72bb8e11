"""Results as tables, and regressions between two results. No jax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jengine.bench.gpu_proof.context_parallel import GROUPED, group_problems
from jengine.pictures.page import Part, Section, Table, as_markdown

STEP_COLUMNS = {
    "step": "step",
    "launches": "launches",
    "launches_a_layer": "a layer",
    "moves_a_layer": "slices a layer",
    "kernel_calls": "ours",
    "command_buffers": "command buffers",
    "outside_command_buffers": "launches outside",
    "collectives_outside": "collectives outside",
    "rematerialized": "recomputed",
    "cache_copies": "cache copies",
    "cache_gb": "cache GB",
    "temporary_mb": "temporaries MB",
    "host_gb": "GB from the host",
    "late_copies": "copies without kernels",
    "matmul_rows": "rows of matmuls",
    "collectives": "collectives",
}
KERNEL_COLUMNS = {
    "kernel": "kernel",
    "case": "case",
    "codes": "codes",
    "tokens": "tokens",
    "slots": "programs a head",
    "part_tokens": "tokens of queries",
    "tile_rows": "tile rows",
    "tile_columns": "columns",
    "tile_depth": "depth",
    "warps": "warps",
    "stages": "stages",
}
# The most temporary memory of any step with our kernels, in MB.
MOST_TEMPORARY = 2000
CODES, FP8, FEW_BITS = "cache of", "weights in fp8", "weights in"  # in names of cases
MORE_BARRIERS = 2  # in the time of one turn
MATMULS = 128  # of llama-8b without its head
ATTENTION = ("decode_parts", "prefill_tiles", "latent_parts")
# The matrix instructions of devices that have their own, by `assembly.facts`.
MATMUL_OF = {90: "wgmma", **dict.fromkeys((100, 103, 110), "tcgen05")}
MOST_LAUNCHES = {
    "llama-8b, 8 rows, triton": 415,
    "llama-8b, 64 rows, triton": 340,
    "llama-8b, 64 rows, triton, matmuls xla": 415,
    "llama-8b, 64 rows + 2048 prompt tokens, triton": 360,
    "llama-8b, 8 rows + 8192 prompt tokens, triton": 360,
    # A chain takes at most 3 launches more than one program (315 of 64 rows).
    "llama-8b, 64 rows, triton, forward alone": 309,
    "llama-8b, 64 rows, triton, sample alone": 9,
}
# Steps with a bound of their own for temporaries, in MB.
MOST_OF_STEP = {
    "llama-8b, 64 rows + 2048 prompt tokens, triton": 240,
    "llama-8b, 8 rows + 8192 prompt tokens, triton": 870,
}
# Steps whose layers slice or join arrays, and how often: eight devices that share four KV heads,
# tokens that are put into messages, latent vectors with their rotated parts, and recurrent inputs.
MOVES_OF_STEP = {
    "qwen3-30b-a3b, 64 rows, triton, 8 devices, whole experts by allgather_reducescatter, "
    "forward alone": 2,
    "qwen3-30b-a3b, 64 rows, triton, 8 devices, whole experts by all_to_all, forward alone": 3,
    "qwen3-30b-a3b, 64 rows, triton, 8 devices, whole experts by all_to_all, 8 replicas, "
    "forward alone": 1,
    "deepseek-v3, 64 rows, triton, 8 devices, whole experts by allgather_reducescatter, "
    "5 layers": 5,
    "qwen3-next-80b-a3b, 64 rows, triton, 8 devices, whole experts by allgather_reducescatter, "
    "4 layers": 1,
    "qwen3-next-80b-a3b, 64 rows, triton, 4 layers": 1,
    "granite-4-h-small, 64 rows, triton, 6 layers": 1,
    "qwen3-30b-a3b, 64 rows, triton, 8 devices of which 2 divide contexts, 4 layers": 1,
    "deepseek-v3, 64 rows, triton, 8 devices of which 8 divide contexts, 4 layers": 5,
    # Of the whole step: by the order of tokens, not by layers.
    **dict(zip(GROUPED, (1, 5, 5), strict=True)),
}
# Adjusted logits, and the model's own beside them, whose log-probabilities are wanted.
COPIES_OF_STEP = {"llama-8b, 64 rows, triton, full, sample alone": 2}
# Steps with layers in the host's memory: GB that they copy, which are those layers once, and how
# many copies no kernel need run beside: those of the first layer, and one more in two of the steps.
FROM_HOST = {
    "llama-8b, 64 rows, triton, 16 GiB on the host": (13.959, 7),
    "llama-8b, 64 rows + 2048 prompt tokens, triton, 4 GiB on the host": (4.362, 6),
    "llama-8b, 64 rows, triton, 4 devices, 2 GiB on the host": (2.181, 6),
    "llama-8b, 64 rows, triton, weights in int4, 2 GiB on the host": (2.181, 11),
}
# A single launch between two collectives is not put into a graph.
TOO_FEW = 1
# Temporaries may grow by this much, which fusions of other XLA versions account for.
SLACK = 1.1


def markdown(result: Mapping[str, Any]) -> str:
    """The whole result as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    parts: list[Part] = [f"Compiled without a GPU; nothing was run or timed. {versions}."]
    if result["steps"]:
        rows = ([row.get(key, "") for key in STEP_COLUMNS] for row in result["steps"])
        parts.append(Section("Steps on an H200", Table(list(STEP_COLUMNS.values()), rows)))
    if result["kernels"]:
        lead = "Registers a thread, spilled bytes a thread, shared memory a program."
        parts.append(Section("Kernels", lead, kernel_table(result["kernels"])))
    return as_markdown(*parts) + "\n"


def kernel_table(kernels: Sequence[Mapping[str, Any]]) -> Table:
    """One line per kernel and case, with a column per device."""
    capabilities = sorted({row["capability"] for row in kernels})
    lines: dict[tuple[Any, ...], dict[int, str]] = {}
    for row in kernels:
        key = tuple(row.get(name, "") for name in KERNEL_COLUMNS)
        cell = f"{row['registers']} / {row['spilled_bytes']} / {row['shared_bytes']:,}"
        lines.setdefault(key, {})[row["capability"]] = cell
    head = [*KERNEL_COLUMNS.values(), *(f"sm_{capability}" for capability in capabilities)]
    body = ([*key, *(cells.get(c, "") for c in capabilities)] for key, cells in lines.items())
    return Table(head, body)


def worse(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """Regressions between two results, over cases in both."""
    before = {row["step"]: row for row in old["steps"]}
    pairs = [(row, before[row["step"]]) for row in new["steps"] if row["step"] in before]
    return [
        *(problem for row in new["kernels"] for problem in kernel_problems(row)),
        *(problem for pair in coded_pairs(new["kernels"]) for problem in coded_problems(*pair)),
        *(problem for row in new["steps"] for problem in step_problems(row)),
        *(problem for pair in pairs for problem in growth(*pair)),
    ]


def kernel_problems(row: Mapping[str, Any]) -> Iterator[str]:
    """Violations: register spills; attention loops without load/compute overlap; releases without a
    barrier; prefill attention without the device's matrix instructions."""
    name = f"{row['kernel']} for {row['case']} on sm_{row['capability']}"
    if row["spilled_bytes"]:
        yield f"{name} spills {row['spilled_bytes']} bytes"
    # Two float32 tiles of whole entries would not fit the memory of most devices.
    large = row["kernel"] == "latent_parts" and row["case"].startswith("float32")
    if row["kernel"] not in ATTENTION or large:
        return
    if row["single_buffered_loops"] or not row["asynchronous_loops"]:
        yield f"{name} waits in a loop for the loads that it has just begun"
    if row["unordered_releases"]:
        yield f"{name} releases stores of other threads without a barrier"
    matmul = MATMUL_OF.get(row["capability"])
    is_float32 = row["case"].startswith("float32")
    if row["kernel"] == "prefill_tiles" and matmul and not is_float32 and not row[matmul]:
        yield f"{name} has no {matmul}"


def coded_pairs(
    kernels: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each attention kernel over a cache of codes, and the same one over plain numbers. What reads
    copies of a cache of codes is the latter."""
    plain = {(row["kernel"], row["case"], row["capability"]): row for row in kernels}
    for row in kernels:
        case, codes, _ = row["case"].partition(f" {CODES}")
        pair = plain.get((row["kernel"], case, row["capability"]))
        reads_codes = codes and row["codes"] != "none"
        if reads_codes and row["kernel"] in ATTENTION and pair is not None:
            yield row, pair


def coded_problems(row: Mapping[str, Any], plain: Mapping[str, Any]) -> Iterator[str]:
    """Report why attention over a quantized cache is slower than its bytes allow: loads of less
    than a word and, in decodes, smaller loop iterations and more barriers than over an unquantized
    one."""
    name = f"{row['kernel']} for {row['case']} on sm_{row['capability']}"
    narrow, wide = row["narrow_loads"], row["wide_copies"]
    if narrow or not wide:
        yield f"{name} has {narrow} narrow loads, {wide} copies of 16 bytes"
    if row["kernel"] != "decode_parts":
        return
    if row["tokens"] < plain["tokens"]:
        yield f"{name} reads {row['tokens']} tokens a turn, of plain numbers {plain['tokens']}"
    turns = row["tokens"] / plain["tokens"]
    if row["barriers"] > turns * (plain["barriers"] + MORE_BARRIERS):
        yield f"{name} has {row['barriers']} barriers a turn, of plain numbers {plain['barriers']}"


def step_problems(row: Mapping[str, Any]) -> Iterator[str]:
    """Violated conditions on steps that use jengine's kernels."""
    if not row["kernel_calls"]:
        return
    # Every collective that is not captured ends a graph.
    collectives = row["collectives_outside"]
    without_graph = max(collectives + 1 - row["command_buffers"], 0)
    for name, most in (
        ("command_buffers", collectives + 1),
        ("outside_command_buffers", without_graph * TOO_FEW),
    ):
        if row[name] > most:
            yield f"{row['step']}: {name} is {row[name]}, at most {most}"
    if not row["command_buffers"]:
        yield f"{row['step']}: no launch is in a command buffer"
    if row["step"].endswith(FP8) and row["fp8_matmuls"] != MATMULS:
        yield f"{row['step']}: {row['fp8_matmuls']} matmuls of FP8, expected {MATMULS}"
    if FEW_BITS in row["step"] and row.get("plain_weights"):
        yield f"{row['step']}: {row['plain_weights']} plain copies of weights of few bits"
    for name, wanted in (
        ("cache_copies", COPIES_OF_STEP.get(row["step"], 0)),
        ("rematerialized", 0),
        ("cache_aliased", True),
        ("moves_a_layer", MOVES_OF_STEP.get(row["step"], 0)),
    ):
        if row[name] != wanted:
            yield f"{row['step']}: {name} is {row[name]}, expected {wanted}"
    if row.get("kernels_not_loaded"):
        yield f"{row['step']}: {row['kernels_not_loaded']} kernels are loaded while it runs"
    if row["step"] in FROM_HOST:
        gb, late = FROM_HOST[row["step"]]
        if row["host_gb"] != gb:
            yield f"{row['step']}: {row['host_gb']} GB come from the host, expected {gb}"
        if row["late_copies"] > late:
            yield f"{row['step']}: no kernel runs beside {row['late_copies']} copies, of {late}"
    yield from group_problems(row)
    room = MOST_OF_STEP.get(row["step"], MOST_TEMPORARY)
    if row["temporary_mb"] > room:
        yield f"{row['step']}: {row['temporary_mb']} MB of temporaries, of at most {room}"
    most = MOST_LAUNCHES.get(row["step"])
    if most is not None and row["launches"] > most:
        yield f"{row['step']}: {row['launches']} launches, at most {most} are allowed"


def growth(row: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Increases in launches and temporaries beyond what XLA versions may vary by."""
    for name in ("launches", "temporary_mb"):
        if row[name] > before[name] * SLACK:
            yield f"{row['step']}: {name} is {row[name]}, and was {before[name]}"
