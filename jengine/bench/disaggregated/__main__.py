"""Command line: prints a summary, and the JSON as the last line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from jengine.bench.disaggregated.run import FIGURES, Canaries, run
from jengine.bench.server_frame import ServerBenchmark

ABOUT = (
    "A prefill and a decode server behind a router, beside one that does both; then load for "
    "minutes while one of the two is killed again and again."
)


def measured(settings: Canaries, logs: Path) -> dict[str, Any]:
    """Run the benchmark; `logs` is a folder."""
    logs.mkdir(parents=True, exist_ok=True)
    return run(settings, logs, lambda line: print(line, file=sys.stderr))


def printed(result: dict[str, Any]) -> str:
    lines = [
        f"{name}: " + ", ".join(f"{key} {result[name][key]:g}" for key in FIGURES)
        for name in ("mixed", "pair")
        if result[name] is not None
    ]
    if lines:
        speed, calm = (
            result["pair"][key] / max(result["mixed"][key], 1e-9)
            for key in ("output_throughput", "p99_itl_ms")
        )
        lines.append(f"pair / mixed: throughput {speed:.2f}, ITL p99 {calm:.2f}")
    lines += [
        f"{result['requests']} requests, {result['lost_count']} lost, "
        f"{result['lost_with_the_decode_server']} more with a killed decode server; "
        f"{result['songs']} songs, {len(result['other_songs'])} with other tokens; "
        f"{result['tokens_that_travelled']:g} tokens travelled before the first kill",
        *(f"killed: {one['killed']}, back after {one['recovery_s']} s" for one in result["kills"]),
        *(f"lost: {line}" for line in result["lost"]),
        "FAILED: " + "; ".join(result["failed"]) if result["failed"] else "Passed.",
    ]
    return "\n".join(lines)


bench = ServerBenchmark(
    name="disaggregated",
    about=ABOUT,
    settings=Canaries,
    log=("--logs", "keep the logs in this folder"),
    measure=measured,
    printed=printed,
)


if __name__ == "__main__":
    sys.exit(bench.main(sys.argv[1:]))
