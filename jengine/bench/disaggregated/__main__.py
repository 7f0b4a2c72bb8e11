"""The command line: prints what happened, and the JSON as the last line."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from jengine.bench.disaggregated.run import FIGURES, Canaries, run
from jengine.bench.verdict import say
from jengine.errors import JengineError


def parse(words: list[str]) -> tuple[argparse.Namespace, Canaries]:
    """The settings; flags of the servers come after two dashes."""
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="python -m jengine.bench.disaggregated",
        description="A prefill and a decode server behind a router, beside one that does both; "
        "then load for minutes while one of the two is killed again and again.",
        epilog="Flags of each `jengine serve` come after --, such as: -- --max-num-seqs 8",
    )
    parser.add_argument("model", nargs="?", default="demo", help="a model folder, or demo")
    parser.add_argument("--seconds", type=float, default=600.0, help="with kills [600]")
    parser.add_argument("--clients", type=int, default=8, help="requests at once [8]")
    parser.add_argument("--kill-pause", type=float, default=30.0, help="seconds between kills [30]")
    parser.add_argument("--prompts", type=int, default=200, help="measured; 0: none [200]")
    parser.add_argument("--input-tokens", type=int, default=128, help="of measured prompts [128]")
    parser.add_argument("--output-tokens", type=int, default=32, help="of their answers [32]")
    parser.add_argument("--logs", type=Path, help="keep the logs in this folder")
    parser.add_argument("--output-json", type=Path, help="also write the JSON to a file")
    given = parser.parse_args(words[:cut])
    return given, Canaries(
        model=given.model,
        flags=tuple(words[cut + 1 :]),
        seconds=given.seconds,
        clients=given.clients,
        kill_pause=given.kill_pause,
        prompts=given.prompts,
        input_tokens=given.input_tokens,
        output_tokens=given.output_tokens,
    )


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
    return say("jengine.bench.disaggregated", words, found, printed, given.output_json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
