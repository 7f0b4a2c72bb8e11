"""Command line: prints a summary, and the JSON as the last line."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from jengine.bench.server_frame import ServerBenchmark
from jengine.bench.strangers.run import SearchSettings, run

ABOUT = "Requests made to do harm, by a server's own schema, beside honest clients."


def printed(result: dict[str, Any]) -> str:
    bystanders, memory = result["bystanders"], result["resident_mb"]
    lines = [
        f"Strangers: {result['requests']} requests",
        *(f"  {name}: {count}" for name, count in result["statuses"].items()),
        f"Bystanders: {bystanders['answered']} answered, median {bystanders['median_s']} s, "
        f"slowest {bystanders['slowest_s']} s",
        f"Memory: {memory['before']} MB before, {memory['most']} at most, {memory['after']} after",
        *(f"Error: {line}" for line in result["errors"]),
        *(f"Bystander: {line}" for line in bystanders["failures"]),
        *(f"Late by requests {one['beside']}: {one['seconds']} s" for one in bystanders["late"]),
        *(f"Log: {line}" for line in result["forbidden_log_lines"]),
        "FAILED: " + "; ".join(result["failed"]) if result["failed"] else "Passed.",
    ]
    return "\n".join(lines)


bench = ServerBenchmark(
    name="strangers",
    about=ABOUT,
    settings=SearchSettings,
    measure=lambda search, log: asyncio.run(run(search, log)),
    printed=printed,
)


if __name__ == "__main__":
    sys.exit(bench.main(sys.argv[1:]))
