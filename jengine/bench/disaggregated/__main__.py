"""The command line: prints what happened, and the JSON as the last line."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from jengine.bench.disaggregated.run import FIGURES, Canaries, run
from jengine.bench.frame import keep
from jengine.bench.machine import client_surroundings
from jengine.bench.server_flags import parsed
from jengine.errors import JengineError

ABOUT = (
    "A prefill and a decode server behind a router, beside one that does both; then load for "
    "minutes while one of the two is killed again and again."
)


def parse(words: list[str]) -> tuple[argparse.Namespace, Canaries]:
    """The settings; flags of the server come after two dashes."""
    log = ("--logs", "keep the logs in this folder")
    return parsed(Canaries, words, "jengine.bench.disaggregated", ABOUT, log)


def printed(result: dict[str, Any]) -> str:
    """What happened, for people."""
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


def main(words: list[str]) -> int:
    """Run and print; the status is 1 if something failed."""
    given, settings = parse(words)
    with tempfile.TemporaryDirectory() as folder:
        logs = given.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        try:
            found = run(settings, logs, lambda line: print(line, file=sys.stderr))
        except JengineError as error:
            print(f"jengine: error: {error}", file=sys.stderr)
            return 1
    return keep("disaggregated", words, found, given.output_json, printed, client_surroundings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
