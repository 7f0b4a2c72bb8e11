"""The command line of the search: prints what happened, and the JSON as the last line."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from jengine.bench.strangers.run import Search, run
from jengine.bench.verdict import say
from jengine.errors import JengineError


def parse(words: list[str]) -> tuple[argparse.Namespace, Search]:
    """The settings; flags of the server come after two dashes."""
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="python -m jengine.bench.strangers",
        description="Requests made to do harm, by a server's own schema, beside honest clients.",
        epilog="Flags of `jengine serve` come after --, such as: -- --max-num-seqs 64",
    )
    parser.add_argument("model", nargs="?", default="demo", help="a model folder, or demo")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long [60]")
    parser.add_argument("--strangers", type=int, default=8, help="requests at once [8]")
    parser.add_argument("--seed", type=int, default=0, help="of all requests [0]")
    parser.add_argument("--first", type=int, default=0, help="number of the first request [0]")
    parser.add_argument("--log", type=Path, help="keep the server's log in this file")
    parser.add_argument("--output-json", type=Path, help="also write the JSON to a file")
    given = parser.parse_args(words[:cut])
    return given, Search(
        given.model,
        tuple(words[cut + 1 :]),
        given.seconds,
        given.strangers,
        given.seed,
        given.first,
    )


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
    return say("jengine.bench.strangers", words, found, printed, given.output_json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
