"""The report in the layout of `vllm bench serve`."""

from __future__ import annotations

from typing import Any

from jengine.bench.serve.figures import shown
from jengine.bench.serve.settings import LoadSettings

WIDTH = 50


def printed(result: dict[str, Any], settings: LoadSettings) -> str:
    """The report of one load."""
    limit, rate, goodput = (
        result["max_concurrency"], result["request_rate"], result["request_goodput"],
    )  # fmt: skip
    lines = [f"Error {i}: {error}" for i, error in enumerate(result["first_errors"])]
    lines += [
        heading("Serving Benchmark Result", "="),
        line("Successful requests:", result["completed"]),
        line("Failed requests:", result["failed"]),
        *([line("Maximum request concurrency:", limit)] if limit is not None else []),
        *([line("Request rate configured (RPS):", rate)] if rate != "inf" else []),
        line("Benchmark duration (s):", result["duration"]),
        line("Total input tokens:", result["total_input_tokens"]),
        line("Total generated tokens:", result["total_output_tokens"]),
        line("Request throughput (req/s):", result["request_throughput"]),
        *([line("Request goodput (req/s):", goodput)] if goodput is not None else []),
        line("Output token throughput (tok/s):", result["output_throughput"]),
        line("Peak output token throughput (tok/s):", result["max_output_tokens_per_s"]),
        line("Peak concurrent requests:", float(result["max_concurrent_requests"])),
        line("Total token throughput (tok/s):", result["total_token_throughput"]),
    ]
    for metric in shown(settings):
        lines.append(heading(metric.title, "-"))
        lines.append(line(f"Mean {metric.name} (ms):", result[f"mean_{metric.key}_ms"]))
        lines.append(line(f"Median {metric.name} (ms):", result[f"median_{metric.key}_ms"]))
        for one in settings.percentiles:
            lines.append(line(f"P{one:g} {metric.name} (ms):", result[f"p{one:g}_{metric.key}_ms"]))
    if "added_latency_ms" in result:
        lines.append(heading("From the end of a step to the client", "-"))
        for name, value in result["added_latency_ms"].items():
            lines.append(line(f"{name.capitalize()} of all tokens (ms):", value))
    if "peer" in result:
        peer = result["peer"]
        lines.append(heading("Median of runs in turns", "-"))
        lines.append(line(f"{result['server']} (tok/s):", result["output_tok_s"]))
        lines.append(line(f"{peer['engine']} (tok/s):", peer["output_tok_s"]))
        lines.append(line("Ratio:", float(result["ratio"])))
    return "\n".join([*lines, "=" * WIDTH])


def heading(title: str, fill: str) -> str:
    """A title centred in a rule."""
    return f" {title} ".center(WIDTH, fill) if fill == "=" else title.center(WIDTH, fill)


def line(name: str, value: float) -> str:
    """One label and number."""
    return f"{name:<40} {value:<10.2f}" if isinstance(value, float) else f"{name:<40} {value:<10}"
