"""The command line of the search: prints what happened, and the JSON as the last line."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from jengine.bench.frame import keep
from jengine.bench.machine import client_surroundings
from jengine.bench.server_flags import parsed
from jengine.bench.strangers.run import Search, run
from jengine.errors import JengineError

ABOUT = "Requests made to do harm, by a server's own schema, beside honest clients."


def parse(words: list[str]) -> tuple[argparse.Namespace, Search]:
    """The settings; flags of the server come after two dashes."""
    log = ("--log", "keep the server's log in this file")
    return parsed(Search, words, "jengine.bench.strangers", ABOUT, log)


def printed(result: dict[str, Any]) -> str:
    """What happened, for people."""
    bystanders, memory = result["bystanders"], result["resident_mb"]
    lines = [
        f"Strangers: {result['requests']} requests",
        *(f"  {name}: {count}" for name, count in result["statuses"].items()),
        f"Bystanders: {bystanders['answered']} answered, median {bystanders['median_s']} s, "
        f"slowest {bystanders['slowest_s']} s",
        f"Memory: {memory['before']} MB before, {memory['most']} at most, {memory['after']} after",
        *(f"Error: {line}" for line in result["errors"]),
        *(f"Bystander: {line}" for line in bystanders["failures"]),
        *(f"Log: {line}" for line in result["forbidden_log_lines"]),
        "FAILED: " + "; ".join(result["failed"]) if result["failed"] else "Passed.",
    ]
    return "\n".join(lines)


def main(words: list[str]) -> int:
    """Run and print; the status is 1 if something failed."""
    given, search = parse(words)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = asyncio.run(run(search, given.log or Path(folder) / "server.log"))
        except JengineError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return keep("strangers", words, found, given.output_json, printed, client_surroundings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
