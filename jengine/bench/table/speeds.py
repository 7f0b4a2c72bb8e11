"""Rows of the tables of figures: how fast something is, alone or beside a peer.

In: the JSON of a benchmark. Out: rows. Must not measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from jengine.bench.workloads import WORKLOADS

USUAL_CONTEXT = 512  # beside which a long one is shown


class TableRow(NamedTuple):
    """One table row: workload, and the speeds of jengine and of the peer."""

    work: str
    ours: str
    peer: str = ""
    ratio: str = ""


def throughput(result: dict[str, Any]) -> Iterator[TableRow]:
    """Output tokens per second, and the peer's if measured."""
    known = WORKLOADS.get(result["workload"])
    work = f"{result['workload']}: {result['requests']} requests"
    if known is not None:
        work += f", {known.meaning}"
    files = [word for word in result["command"].split() if word.endswith(".gguf")]
    if files:  # whose tensors, as they are held, are no count of parameters
        work += f"; {files[0]}"
    else:
        work += f"; {in_short(result['parameters'])} parameters in {result['dtype']}"
    if rounded := result.get("quantization"):
        work += f", weights rounded to {rounded}"
    if method := result.get("drafts_by"):
        work += f", drafts by {method}"
    ours = speed(result["output_tok_s"])
    if "peer" not in result:
        yield TableRow(work, ours)
        return
    peer = result["peer"]
    yield TableRow(
        work, ours, f"{speed(peer['output_tok_s'])}, {peer['engine']}", f"{result['ratio']:.2f}"
    )


def latency(result: dict[str, Any]) -> Iterator[TableRow]:
    """Batch latency in seconds."""
    work = (
        f"a batch of {result['batch_size']}, prompts of {result['input_len']} and answers of "
        f"{result['output_len']} tokens"
    )
    if result.get("use_beam_search"):  # earlier results have none
        work += f", searched with {result['n']} beams"
    yield TableRow(work, f"{result['avg_latency']:.3f} s")


def startup(result: dict[str, Any]) -> Iterator[TableRow]:
    """Time to first token with cold and warm caches."""
    compilation = result["settings"].get("compilation_config") or {}
    early = compilation.get("wait_for") == "largest"
    when = "serving when the largest step is compiled" if early else "serving when all steps are"
    for kind in ("cold", "warm"):
        if kind in result:
            seconds = result[kind]["first_token_s"]
            yield TableRow(f"process to first token, {kind} caches, {when}", f"{seconds:.1f} s")


def load(result: dict[str, Any]) -> Iterator[TableRow]:
    """GB/s from page cache to device."""
    work = f"loading {result['stored_gb']:.1f} GB of weights in {result['dtype']} from page cache"
    yield TableRow(work, f"{result['gb_s']:.1f} GB/s")


def host(result: dict[str, Any]) -> Iterator[TableRow]:
    """Host milliseconds per step."""
    for row in result["results"]:
        work = f"Python of a step, {row['running']:,} running requests"
        if "max_model_len" in row:  # earlier results have none
            work += f", context up to {row['max_model_len']:,}"
        yield TableRow(work, f"{row['total_ms']:.2f} ms")


def growth(result: dict[str, Any]) -> Iterator[TableRow]:
    """Decode step time at the shortest and longest context, per number of rows, and how time and
    bytes grow."""
    for count in dict.fromkeys(row["rows"] for row in result["decode"]):
        steps = [row for row in result["decode"] if row["rows"] == count]
        for context, row in {row["context"]: row for row in (steps[0], steps[-1])}.items():
            work = f"decode step of {count} rows at a context of {context:,}"
            if row.get("floor_ms") is not None:  # earlier results have none
                work += f"; memory alone would take {row['floor_ms']:.2f} ms"
            yield TableRow(work, f"{row['reading_ms']:.2f} ms")
        if short := next((row for row in steps if row["context"] == USUAL_CONTEXT), None):
            times, moved = (steps[-1][one] / short[one] for one in ("reading_ms", "read_bytes"))
            work = f"decode step of {count} rows at a context of {steps[-1]['context']:,}"
            yield TableRow(
                work, f"{times:.2f} times that at {USUAL_CONTEXT}",
                f"{moved:.2f} times its bytes", f"{times / moved:.2f}",
            )  # fmt: skip


def serve(result: dict[str, Any]) -> Iterator[TableRow]:
    """Output tokens per second over HTTP; with the clock model, latency from step to client."""
    at_once = result["max_concurrency"]
    read, made = result["total_input_tokens"], result["total_output_tokens"]
    work = f"served: {result['completed']} requests, "
    work += "all at once" if at_once is None else f"{at_once} at once"
    work += f", {read:,} prompt and {made:,} output tokens"
    if "peer" in result:
        peer = result["peer"]
        theirs = f"{speed(peer['output_tok_s'])}, {peer['engine']}"
        yield TableRow(work, speed(result["output_tok_s"]), theirs, f"{result['ratio']:.2f}")
        return
    if "added_latency_ms" in result:
        work += "; a model that computes nothing"
        added = result["added_latency_ms"]["p99"]
        yield TableRow(f"{work}; from the end of a step to the client, p99", f"{added:.1f} ms")
    yield TableRow(work, speed(result["output_throughput"]))


GRAMMAR_KINDS = {"json": "JSON schema", "regex": "regular expression", "grammar": "BNF grammar"}


def grammars(result: dict[str, Any]) -> Iterator[TableRow]:
    """Token mask milliseconds, or throughput against free text."""
    kind = result.get("kind", "json")
    fitting = f"{result['fitting']} of {result['finished']} finished answers fit their "
    fitting += f"{GRAMMAR_KINDS[kind]}s"
    if "ratio" in result:
        work = f"answers that follow JSON schemas, {fitting}; the peer is free text as long"
        free = f"{speed(result['free_tokens_per_s'])}, no grammar"
        yield TableRow(work, speed(result["ruled_tokens_per_s"]), free, f"{result['ratio']:.2f}")
        return
    work = (
        f"token mask of a {GRAMMAR_KINDS[kind]}, vocabulary of {result['vocabulary']:,}; {fitting}"
    )
    yield TableRow(f"{work}; p99", f"{result['mask_ms']['p99']:.3f} ms")


def adapters(result: dict[str, Any]) -> Iterator[TableRow]:
    """Throughput with adapters against without."""
    work = (
        f"decoding {result['rows']} rows with {result['adapters']} LoRA adapters of rank "
        f"{result['rank']} among them; the peer is the same batch without"
    )
    base = f"{speed(result['base_tokens_per_s'])}, no adapter"
    yield TableRow(work, speed(result["adapted_tokens_per_s"]), base, f"{result['ratio']:.2f}")


def cpu_kernels(result: dict[str, Any]) -> Iterator[TableRow]:
    """Milliseconds of each CPU kernel, beside what reading or multiplying alone would take."""
    for one in result["kernels"]:
        taken = 1e3 * one["seconds"]
        reached = max(one["shares"]["memory"], one["shares"]["arithmetic"])
        yield TableRow(
            f"CPU kernel: {one['kernel']}, {one['rows']} rows, {result['together']['threads']} "
            f"threads; bound by {one['bound']}",
            f"{taken:.3f} ms", f"{taken * reached:.3f} ms at the machine's rates",
            f"{1 / reached:.2f}",
        )  # fmt: skip


def waiting(result: dict[str, Any]) -> Iterator[TableRow]:
    """Step time with the most waiting requests, in the slowest family."""
    cases = {(one["waits_for"], one["family"], one["waiting"]): one for one in result["cases"]}
    for kind in dict.fromkeys(one["waits_for"] for one in result["cases"]):
        most = max(count for name, _, count in cases if name == kind)
        families = [family for name, family, count in cases if (name, count) == (kind, 0)]
        if not most:
            continue
        pairs = [(cases[kind, family, most], cases[kind, family, 0]) for family in families]
        many, none = max(pairs, key=lambda pair: pair[0]["step_us"] - pair[1]["step_us"])
        yield TableRow(
            f"scheduler: a step of 8 streams, {most:,} waiting for {kind} ({many['family']})",
            f"{many['step_us']:.0f} us", f"{none['step_us']:.0f} us, none waiting",
            f"{many['step_us'] / none['step_us']:.2f}",
        )  # fmt: skip


def conversations(result: dict[str, Any]) -> Iterator[TableRow]:
    """TTFT with KV blocks loaded back against recomputation."""
    trace, times = result["trace"], result["time_to_first_token"]
    work = (
        f"{trace['conversations']} conversations of {trace['turns']} turns, a cache for "
        f"{trace['cached_share']:.0%} of them, {result['model']}; time to first token"
    )
    sources = {
        "host": ("blocks from the host's memory", "host", "recompute"),
        "folder": (
            "last turns, blocks from a folder (in the page cache) after a restart",
            "folder after a restart, last turn",
            "recompute, last turn",
        ),
    }
    for name, (what, ours, other) in sources.items():
        again = f"{times[other]['mean_ms']:.1f} ms, computed again"
        mean = f"{times[ours]['mean_ms']:.1f} ms"
        yield TableRow(f"{work}; {what}", mean, again, f"{result['of_recompute'][name]:.2f}")
    for what, ours, other in PEER_CONVERSATIONS if "peer" in result else ():
        if other in times:
            mine, theirs = times[ours]["mean_ms"], times[other]["mean_ms"]
            yield TableRow(
                f"{work}; {what}", f"{mine:.1f} ms", f"{theirs:.1f} ms, {result['peer']}",
                f"{mine / theirs:.2f}",
            )  # fmt: skip


# Of conversations with a peer: what is compared, our figure and the peer's.
PEER_CONVERSATIONS = (
    ("both compute again", "recompute", "vllm, recompute"),
    ("blocks from the host's memory, which the peer's build refuses: it computes again", "host",
     "vllm, recompute"),
    ("last turns, blocks from a folder after a restart; the peer computes again",
     "folder after a restart, last turn", "vllm, recompute, last turn"),
    ("last prompts once more after a restart, both from a folder", "folder, the same prompts again",
     "vllm, folder, the same prompts again"),
)  # fmt: skip


def embeddings(result: dict[str, Any]) -> Iterator[TableRow]:
    """Embeddings per second against each peer."""
    work = f"embeddings of {result['prompts']:,} prompts, {result['tokens']:,} tokens"
    return beside_peers(result, "embeddings", work)


def images(result: dict[str, Any]) -> Iterator[TableRow]:
    """Images per second against each peer."""
    work = (
        f"{result['images']:,} images, {result['prompt_tokens']:,} tokens of prompts, answers of "
        f"{result['answer_tokens']}"
    )
    return beside_peers(result, "images", work)


def beside_peers(result: dict[str, Any], what: str, work: str) -> Iterator[TableRow]:
    """Items per second against each peer."""
    rates = result[f"{what}_per_second"]
    for name, rate in rates.items():
        if name != "jengine":
            yield TableRow(
                work, f"{rates['jengine']:.0f} a second", f"{rate:.0f}, {result['peers'][name]}",
                f"{result['times'][name]:.2f}",
            )  # fmt: skip


def first_uses(result: dict[str, Any]) -> Iterator[TableRow]:
    """Longest stall of running streams at first uses of sampling features; the peer column has
    second uses."""
    for way, found in result["ways"].items():
        work = f"{result['streams']} streams of {result['model']} beside first uses of sampling "
        work += f"features, engine {way}; longest gap, in medians"
        median = found["median_gap_s"]
        first, second = (found[f"longest_{name}gap_s"] / median for name in ("", "second_"))
        yield TableRow(work, f"{first:.1f}", f"{second:.1f}, second uses")


def ray_rows(result: dict[str, Any]) -> Iterator[TableRow]:
    """Medians of rows a second by Ray Data with one actor against one process's."""
    by_ray, alone = (
        f"{median(result[rates]):.0f} rows/s" for rates in ("ray_rows_per_s", "process_rows_per_s")
    )
    work = f"{result['rows']:,} conversations, answers of {result['tokens']}, by Ray Data with one "
    work += f"actor; medians of {len(result['load'])} turns, and of their ratios"
    yield TableRow(work, by_ray, f"{alone}, one process", f"{result['ratio']:.2f}")


def speed(tokens: float) -> str:
    """Format to about three significant digits."""
    return f"{tokens:,.0f} tok/s" if tokens >= 100 else f"{tokens:.1f} tok/s"


def in_short(count: int) -> str:
    """Format a parameter count: 2.1M, 135M, 8.0B."""
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 10 * size else f"{count / size:.0f}{unit}"
    return f"{count:,}"


MEASURED = (
    throughput, latency, startup, load, host, growth, serve, grammars, adapters, cpu_kernels,
    waiting, conversations, embeddings, images, first_uses, ray_rows,
)  # fmt: skip
KINDS = {rows.__name__: rows for rows in MEASURED}
