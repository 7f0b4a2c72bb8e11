"""Generates the tables of benchmark figures in the documentation from saved results.

python -m jengine.bench.table [--check]: writes them between two marks, or says whether they differ.
The documentation shows what was measured in turns with a peer, the project's README some of that,
with a picture of it, the README here all the rest.
In: the JSON that `jengine bench` writes. Must not measure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jengine.bench.gpu.kept import markdown
from jengine.bench.machine import hardware_of
from jengine.bench.ratio_chart import Compared, ratio_chart
from jengine.bench.workloads import WORKLOADS
from jengine.pictures.page import Table, as_markdown

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[2]
# Results that the README shows, in this order; the columns that say what was measured, not how.
HEADLINES = (
    "mixed-vllm-cpu.json",
    "decode-vllm-cpu.json",
    "prefill-vllm-cpu.json",
    "shared-vllm-cpu.json",
    "decode-1b-vllm-cpu.json",
    "mixed-qwen3-moe-150m-vllm-cpu.json",
    "serve-vllm-cpu.json",
    "mixed-transformers-cpu.json",
)
USUAL_CONTEXT = 512  # beside which a long one is shown
BEGIN, END = "<!-- measured -->\n", "<!-- end of measured -->\n"
# Not measurements of speed: they have tables of their own.
NOT_TIMED = ("gpu-proof.json", "gpu-proof-fa4.json", "gpu-h200.json", "coverage.json")
HEAD = ("work", "jengine", "peer", "ratio", "hardware", "command, commit")


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


def marathon(result: dict[str, Any]) -> Iterator[TableRow]:
    """Soak test: requests, recovery times, memory growth."""
    faults = result["injections"]
    work = f"{result['requests']:,} requests in {result['seconds']:.0f} s of load, "
    work += f"{len(faults)} faults" if faults else "no faults"
    yield TableRow(f"{work}; requests lost", f"{result['lost_count']}")
    if faults:
        found = [one["recovery_s"] for one in faults]
        slowest = float("inf") if None in found else max(found)
        yield TableRow(f"{work}; longest until it answered again", f"{slowest:.1f} s")
    if result["memory_slope_mib_per_minute"] is not None:
        slope = result["memory_slope_mib_per_minute"]
        yield TableRow(f"{work}; growth of memory", f"{slope:.2f} MiB a minute")


def strangers(result: dict[str, Any]) -> Iterator[TableRow]:
    """Fuzz test of the server: errors, latency of normal clients, memory afterwards."""
    bystanders, memory = result["bystanders"], result["resident_mb"]
    work = f"{result['requests']:,} requests made to do harm in {result['settings']['seconds']:.0f}"
    work += f" s, {bystanders['answered']:,} of bystanders; "
    yield TableRow(f"{work}errors 5xx, unanswered bystanders", f"{len(result['errors'])}, "
              f"{len(bystanders['failures'])}")  # fmt: skip
    yield TableRow(f"{work}longest wait of a bystander", f"{bystanders['slowest_s']:.2f} s")
    grown = memory["after"] - memory["before"]
    yield TableRow(f"{work}growth of memory", f"{grown:.0f} MB of {memory['before']:.0f}")


def disaggregated(result: dict[str, Any]) -> Iterator[TableRow]:
    """Disaggregated prefill/decode against one server, and requests lost to kills."""
    pair, mixed, kills = result["pair"], result["mixed"], result["kills"]
    asked = result["settings"]
    work = (
        "a prefill and a decode server on the same cores; the peer is one server that does both; "
    )
    work += f"{asked['prompts']} prompts of {asked['input_tokens']} tokens"
    fast, slow = pair["output_throughput"], mixed["output_throughput"]
    yield TableRow(work, speed(fast), f"{speed(slow)}, one server", f"{fast / slow:.2f}")
    late, usual = pair["p99_itl_ms"], mixed["p99_itl_ms"]
    yield TableRow(
        f"{work}; ITL p99, ms", f"{late:.1f}", f"{usual:.1f}, one server", f"{late / usual:.2f}"
    )
    trial = f"{result['requests']:,} requests to the pair in {asked['seconds']:.0f} s, "
    trial += f"{len(kills)} kills; "
    with_it = result["lost_with_the_decode_server"]
    yield TableRow(
        f"{trial}lost, beside {with_it:,} that a killed server decoded", f"{result['lost_count']}"
    )
    slowest = max(float("inf") if one["recovery_s"] is None else one["recovery_s"] for one in kills)
    yield TableRow(f"{trial}longest until a server was back", f"{slowest:.1f} s")


def hostile_grammars(result: dict[str, Any]) -> Iterator[TableRow]:
    """The slowest hostile grammar, and the largest slowdown of free text."""
    work = f"{len(result['grammars'])} grammars made to do harm, among them schemas of 5 MiB"
    yield TableRow(
        f"{work}; longest until one was refused or had ended", f"{result['slowest_s']:.2f} s"
    )
    least = min(one["free_tokens_per_s"] for one in result["grammars"].values())
    alone = result["free_tokens_per_s"]
    yield TableRow(
        f"{work}; free text beside the worst of them", speed(least),
        f"{speed(alone)}, without", f"{least / alone:.2f}",
    )  # fmt: skip


def fidelity(result: dict[str, Any]) -> Iterator[TableRow]:
    """Largest error over all draws, per implementation."""
    for how in dict.fromkeys(row["implementation"] for row in result["families"]):
        families = [
            row for row in result["families"] if row["implementation"] == how and row["draws"]
        ]
        if not families:
            continue
        worst = max(families, key=lambda row: row["largest"])
        draws, ill = (sum(row[key] for row in families) for key in ("draws", "ill_conditioned"))
        work = (
            f"{draws} random configs of {len(families)} families, {how} "
            f"({worst['instructions']}), beside transformers: largest error of a log-probability, "
            f"of {worst['family']}, draw {worst['worst']}; "
            f"{sum(len(row['failed']) for row in families)} failed, {ill} ill-conditioned"
        )
        yield TableRow(work, f"{worst['largest']:.1e}")


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


def schemes(result: dict[str, Any]) -> Iterator[TableRow]:
    """Size, throughput and KL divergence of a model's configurations; ratios are to the first after
    the reference."""
    truth, plain, *_ = result["schemes"]
    for one in result["schemes"][1:]:
        work = (
            f"{result['model']} with {one['name']}: KL from {truth['name']} "
            f"{one['kl']['mean']:.1e} in the mean, {one['kl']['p99']:.1e} at 99 %; same likeliest "
            f"token {one['agreement']['top_1']:.1%}; perplexity {one['perplexity']:.4f} "
            f"({truth['perplexity']:.4f})"
        )
        sizes = [
            f"{each['weight_bytes'] / 1e6:.1f} MB of weights, "
            f"{each['cache_bytes_per_token']:,.0f} bytes a token"
            for each in (one, plain)
        ]
        speeds = [each["tokens_per_second"] for each in (one, plain)]
        if None in speeds or one is plain:
            yield TableRow(work, sizes[0])
        else:
            beside = f"{sizes[1]}, {speed(speeds[1])} with {plain['name']}"
            yield TableRow(
                work, f"{sizes[0]}, {speed(speeds[0])}", beside, f"{speeds[0] / speeds[1]:.2f}"
            )


def rounding(result: dict[str, Any]) -> Iterator[TableRow]:
    """Accuracy cost of quantized weights and caches against bfloat16."""
    plain, *others = result["schemes"].items()
    for name, one in others:
        change = one["perplexity"] / plain[1]["perplexity"] - 1
        yield TableRow(
            f"{result['model']}, {name}, on {result['tokens']:,} tokens: KL from {plain[0]} "
            f"{one['kl']:.1e} in the mean, {one['kl_p99']:.1e} at 99 %; perplexity {change:+.2%}",
            f"{one['weight_bytes'] / 1e6:.1f} MB of weights",
            f"{plain[1]['weight_bytes'] / 1e6:.1f} MB, {plain[0]}",
            f"{one['weight_bytes'] / plain[1]['weight_bytes']:.2f}",
        )


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


def simulation_proof(result: dict[str, Any]) -> Iterator[TableRow]:
    """Measured duration of a trace against its simulation."""
    trace = result["trace"]
    work = f"{trace['requests']} requests, {trace['rate']:g} a second; the peer is their simulation"
    for one in result["compared"]:
        ours, told = one["measured"], one["simulated"]
        yield TableRow(
            f"{work}; {one['figure']}", f"{ours:.1f}", f"{told:.1f}", f"{ours / told:.2f}"
        )


def first_uses(result: dict[str, Any]) -> Iterator[TableRow]:
    """Longest stall of running streams at first uses of sampling features; the peer column has
    second uses."""
    for way, found in result["ways"].items():
        work = f"{result['streams']} streams of {result['model']} beside first uses of sampling "
        work += f"features, engine {way}; longest gap, in medians"
        median = found["median_gap_s"]
        first, second = (found[f"longest_{name}gap_s"] / median for name in ("", "second_"))
        yield TableRow(work, f"{first:.1f}", f"{second:.1f}, second uses")


KINDS: dict[str, Callable[[dict[str, Any]], Iterator[TableRow]]] = {
    "throughput": throughput,
    "latency": latency,
    "startup": startup,
    "load": load,
    "marathon": marathon,
    "strangers": strangers,
    "host": host,
    "growth": growth,
    "serve": serve,
    "grammars": grammars,
    "adapters": adapters,
    "disaggregated": disaggregated,
    "hostile_grammars": hostile_grammars,
    "first_uses": first_uses,
    "fidelity": fidelity,
    "schemes": schemes,
    "rounding": rounding,
    "waiting": waiting,
    "cpu_kernels": cpu_kernels,
    "conversations": conversations,
    "embeddings": embeddings,
    "images": images,
    "simulation proof": simulation_proof,
}


def speed(tokens: float) -> str:
    """Format to about three significant digits."""
    return f"{tokens:,.0f} tok/s" if tokens >= 100 else f"{tokens:.1f} tok/s"


def in_short(count: int) -> str:
    """Format a parameter count: 2.1M, 135M, 8.0B."""
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 10 * size else f"{count / size:.0f}{unit}"
    return f"{count:,}"


def headlines() -> str:
    """The README's rows: workloads without the commands that repeat them."""
    results = [json.loads((RESULTS / name).read_text(encoding="utf-8")) for name in HEADLINES]
    return rows_of(results, with_command=False)


def with_peer() -> str:
    """All results measured against a peer."""
    return rows_of([result for result in kept() if "peer" in result])


def without_peer() -> str:
    """All results measured without a peer."""
    return rows_of([result for result in kept() if "peer" not in result])


def headline_chart() -> str:
    """The README's rows as a chart."""
    results = [json.loads((RESULTS / name).read_text(encoding="utf-8")) for name in HEADLINES]
    compared = [
        Compared(
            f"{one.get('workload', 'served')}, {in_short(parameters_of(one))} parameters",
            f"{speed(one['output_tok_s'])}; {one['peer']['engine'].split(',')[0]}: "
            f"{speed(one['peer']['output_tok_s'])}",
            one["ratio"],
        )
        for one in results
    ]  # fmt: skip
    where = " or ".join(dict.fromkeys(map(hardware_of, results)))
    return ratio_chart(f"Output tokens a second, as a ratio to the peer on {where}", compared)


def parameters_of(result: dict[str, Any]) -> int:
    """The model's parameter count; for a served model, by its shape."""
    return result["parameters"] if "parameters" in result else SERVED[result["model_id"]]


# Parameters of models that served, of which results have the name alone.
SERVED = {"llama-135m": 134_515_008}
# The picture of the README.
CHART = ROOT / "jengine" / "docs" / "pages" / "measured.svg"


def on_gpu() -> str:
    """The GPU check's kept run."""
    return markdown(json.loads((RESULTS / "gpu-h200.json").read_text(encoding="utf-8")))


# A file -> the table between its marks.
TABLES = {
    ROOT / "README.md": headlines,
    ROOT / "jengine" / "docs" / "pages" / "performance.md": with_peer,
    ROOT / "jengine" / "docs" / "pages" / "gpu.md": on_gpu,
    ROOT / "jengine" / "bench" / "README.md": without_peer,
}


def kept() -> list[dict[str, Any]]:
    """All saved results by kind and file name."""
    files = [file for file in sorted(RESULTS.glob("*.json")) if file.name not in NOT_TIMED]
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return sorted(results, key=lambda result: result["bench"])


def rows_of(results: Sequence[dict[str, Any]], *, with_command: bool = True) -> str:
    """Results as a Markdown table."""
    head = HEAD if with_command else HEAD[:-1]
    rows = []
    for result in results:
        how = (hardware_of(result), f"`{result['command']}`, {result['commit']}")
        where = how if with_command else how[:-1]
        rows += [(*row, *where) for row in KINDS[result["bench"]](result)]
    return as_markdown(Table(head, rows))


def with_table(file: Path, table: str) -> str:
    """Replace the table between the marks in a file's text."""
    text = file.read_text(encoding="utf-8")
    if not text.count(BEGIN) == text.count(END) == 1:
        raise SystemExit(f"{file}: expected one {BEGIN.strip()} and one {END.strip()}.")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}{table}\n{END}{after}"


def main(words: Sequence[str] | None = None) -> int:
    """Write the tables, or with `--check` compare them; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m jengine.bench.table")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a table differs")
    check = parser.parse_args(words).check
    wanted = {file: with_table(file, table()) for file, table in TABLES.items()}
    wanted[CHART] = headline_chart()
    stale = [
        file for file, text in wanted.items()
        if not file.exists() or file.read_text(encoding="utf-8") != text
    ]  # fmt: skip
    for file in stale:
        if check:
            print(f"{file} does not show the results: python -m jengine.bench.table",
                  file=sys.stderr)  # fmt: skip
        else:
            file.write_text(wanted[file], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
