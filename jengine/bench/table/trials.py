"""Rows of the tables of figures: what trials, comparisons and models found beside speed.

In: the JSON of a benchmark. Out: rows. Must not measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jengine.bench.table.speeds import TableRow, speed


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


def simulation_proof(result: dict[str, Any]) -> Iterator[TableRow]:
    """Measured duration of a trace against its simulation."""
    trace = result["trace"]
    work = f"{trace['requests']} requests, {trace['rate']:g} a second; the peer is their simulation"
    for one in result["compared"]:
        ours, told = one["measured"], one["simulated"]
        yield TableRow(
            f"{work}; {one['figure']}", f"{ours:.1f}", f"{told:.1f}", f"{ours / told:.2f}"
        )


KINDS = {one.__name__: one for one in (
    marathon, strangers, disaggregated, hostile_grammars, fidelity, schemes, rounding,
)} | {"simulation proof": simulation_proof}  # fmt: skip
