"""python -m tests.server.conformance NAME [--python PATH] [--url URL]: one client against a server.

Starts `jengine serve demo`, unless --url names a server of the demo model, runs the client and
prints what it found, last as one line of JSON. `--keep` writes that into results/.
Exit status 1: something was not as it should be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from jengine.bench.machine import client_surroundings
from jengine.bench.serve.launched import our_server
from tests.server.conformance import lm_eval, schemathesis, vllm_bench

CHECKS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "lm-eval": lm_eval.check,
    "vllm-bench": vllm_bench.check,
    "schemathesis": schemathesis.check,
}
FLAGS = ["--max-num-seqs", "16", "--served-model-name", "demo", "--max-model-len"]
CONTEXTS = {"schemathesis": "128"}  # answers as long as the context are what it asks for most
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.server.conformance")
    parser.add_argument("name", choices=CHECKS)
    parser.add_argument("--python", default=sys.executable, help="a Python that has the client")
    parser.add_argument("--url", help="a server of the demo model [one is started]")
    parser.add_argument("--keep", action="store_true", help="write the result into results/")
    given = parser.parse_args()
    flags = [*FLAGS, CONTEXTS.get(given.name, "1024")]
    with nullcontext(given.url) if given.url else our_server("demo", flags) as url:
        found = CHECKS[given.name](url, given.python)
    command = f"python -m tests.server.conformance {given.name}"
    result = {"command": command, **client_surroundings(), **found}
    if given.keep:
        RESULTS.mkdir(exist_ok=True)
        text = json.dumps(result, indent=1) + "\n"
        (RESULTS / f"{given.name}.json").write_text(text, encoding="utf-8")
    print(json.dumps(result))
    return int(bool(found["problems"]))


if __name__ == "__main__":
    sys.exit(main())
