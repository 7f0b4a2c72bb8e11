"""The command line of the marathon: prints what happened, and the JSON as the last line."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from jengine.bench.marathon.run import Marathon, run
from jengine.bench.verdict import say
from jengine.errors import JengineError


def parse(words: list[str]) -> tuple[argparse.Namespace, Marathon]:
    """The settings; flags of the server come after two dashes."""
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="python -m jengine.bench.marathon",
        description="A server under load for minutes, with faults.",
        epilog="Flags of `jengine serve` come after --, such as: -- --max-num-seqs 64",
    )
    parser.add_argument("model", nargs="?", default="demo", help="a model folder, or demo")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long [600]")
    parser.add_argument("--requests", type=int, help="so many requests instead, without faults")
    parser.add_argument("--clients", type=int, default=16, help="requests at once [16]")
    parser.add_argument(
        "--fault-pause", type=float, default=45.0, help="seconds between faults, 0: none [45]"
    )
    parser.add_argument(
        "--stop-seconds", type=float, default=5.0, help="that a process stays stopped [5]"
    )
    parser.add_argument("--log", type=Path, help="keep the server's log in this file")
    parser.add_argument("--output-json", type=Path, help="also write the JSON to a file")
    given = parser.parse_args(words[:cut])
    faults = None if given.requests or not given.fault_pause else given.fault_pause
    return given, Marathon(
        model=given.model,
        flags=tuple(words[cut + 1 :]),
        seconds=given.seconds,
        requests=given.requests,
        clients=given.clients,
        fault_pause=faults,
        stop_seconds=given.stop_seconds,
    )


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
    return say("jengine.bench.marathon", words, found, printed, given.output_json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
