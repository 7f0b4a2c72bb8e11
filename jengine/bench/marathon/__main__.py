"""The command line of the marathon: prints what happened, and the JSON as the last line."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from jengine.bench.frame import keep
from jengine.bench.machine import client_surroundings
from jengine.bench.marathon.run import Marathon, run
from jengine.bench.server_flags import parsed
from jengine.errors import JengineError

ABOUT = "A server under load for minutes, with faults."


def parse(words: list[str]) -> tuple[argparse.Namespace, Marathon]:
    """The settings; flags of the server come after two dashes."""
    log = ("--log", "keep the server's log in this file")
    return parsed(Marathon, words, "jengine.bench.marathon", ABOUT, log)


def printed(result: dict[str, Any]) -> str:
    """What happened, for people."""
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


def main(words: list[str]) -> int:
    """Run and print; the status is 1 if something failed."""
    given, marathon = parse(words)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = asyncio.run(run(marathon, given.log or Path(folder) / "server.log"))
        except JengineError as error:
            print(f"jengine: error: {error}", file=sys.stderr)
            return 1
    return keep("marathon", words, found, given.output_json, printed, client_surroundings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
