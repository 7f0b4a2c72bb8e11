"""Command line: prints a summary, and the JSON as the last line."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from jengine.bench.marathon.run import Marathon, run
from jengine.bench.server_frame import ServerBenchmark

ABOUT = "A server under load for minutes, with faults."


def printed(result: dict[str, Any]) -> str:
    canary = result["canary"]
    lines = [
        f"Marathon: {result['requests']} requests in {result['seconds']:g} s, "
        f"{result['lost_count']} lost, {result['lost_while_disturbed']} more during faults",
        *(f"  {name}: {count}" for name, count in result["endings"].items()),
        f"Canary: {canary['sung']} songs, {len(canary['other_tokens'])} with other tokens, "
        f"{canary['calm_failure_count']} failed, {canary['disturbed_failures']} more in faults",
        *(
            f"Fault at {one['at']:g} s: {one['fault']}, answered again after {one['recovery_s']} s"
            + (f"; {one['problem']}" if one["problem"] else "")
            for one in result["injections"]
        ),
        "Memory: "
        + ("" if result["injections"] else f"{result['memory_slope_mib_per_minute']} MiB/min; ")
        + f"at the end: {result['resident_mb'][-1]} MiB, {result['held']}, "
        f"status {result['exit_status']}, {result['orphans']} processes left",
        *(f"Log: {line}" for line in result["forbidden_log_lines"]),
        *(f"Lost: {line}" for line in result["lost"]),
        "FAILED: " + "; ".join(result["failed"]) if result["failed"] else "Passed.",
    ]
    return "\n".join(lines)


bench = ServerBenchmark(
    name="marathon",
    about=ABOUT,
    settings=Marathon,
    measure=lambda marathon, log: asyncio.run(run(marathon, log)),
    printed=printed,
)


if __name__ == "__main__":
    sys.exit(bench.main(sys.argv[1:]))
