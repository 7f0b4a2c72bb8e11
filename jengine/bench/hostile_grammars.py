"""What adversarial grammars cost: time to refusal or answer, and throughput of other requests.

    python -m jengine.bench.hostile_grammars [MODEL] [--output-json FILE]

One thread makes free text without a pause. Meanwhile each hostile grammar is asked for: the seconds
until it was refused, or its answer had ended, and the free tokens per second until then beside
those without it.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from jengine.api.llm import LLM
from jengine.bench.frame import Benchmark
from jengine.errors import RequestError
from jengine.sampling_params import SamplingParams
from jengine.structured_outputs import StructuredOutputsParams

HOSTILE: Mapping[str, Mapping[str, Any]] = {
    "regex of 2^60 states": {"regex": "(a|b)*a(a|b){60}"},
    "regex of nested repetitions": {"regex": "((a{0,300}){0,300}){0,300}"},
    "regex of many wildcards": {"regex": "(.*a){25}"},
    "regex of nested options": {"regex": "(?:(?:(?:a?){50}){50}){50}b"},
    "schema of 5 MiB": {"json": json.dumps({"description": "x" * (5 << 20)})},
    "schema of 100,000 brackets": {"json": '{"items":' * 100_000 + "true" + "}" * 100_000},
    "schema of 5,000 optional properties": {
        "json": {"type": "object", "properties": {f"p{i}": {} for i in range(5000)}}
    },
    "EBNF of 10,000 alternatives": {
        "grammar": "root ::= " + " | ".join(f'"{i:05}"' for i in range(10_000))
    },
}
QUIET = 2.0  # seconds of free text alone
ROWS = 4


class FreeText:
    """A background thread that generates unconstrained text and counts tokens."""

    def __init__(self, llm: LLM) -> None:
        self.tokens = 0
        self._llm = llm
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        params = SamplingParams(max_tokens=32, ignore_eos=True)
        while not self._ended:
            outputs = self._llm.generate(["Once upon a time"] * ROWS, params, use_tqdm=False)
            self.tokens += sum(len(one.outputs[0].token_ids) for one in outputs)

    def end(self) -> None:
        self._ended = True
        self._thread.join()


def measure(llm: LLM) -> dict[str, Any]:
    """Run each hostile grammar beside free text generation."""
    free = FreeText(llm)
    time.sleep(QUIET)  # programs
    began, before = time.perf_counter(), free.tokens
    time.sleep(QUIET)
    alone = (free.tokens - before) / (time.perf_counter() - began)
    found = {name: _ask(llm, free, given) for name, given in HOSTILE.items()}
    free.end()
    return {"free_tokens_per_s": alone, "slowest_s": max(one["seconds"] for one in found.values()),
            "grammars": found}  # fmt: skip


def _ask(llm: LLM, free: FreeText, given: Mapping[str, Any]) -> dict[str, Any]:
    began, before = time.perf_counter(), free.tokens
    try:
        params = SamplingParams(
            structured_outputs=StructuredOutputsParams(**given), max_tokens=16, temperature=0
        )
        (output,) = llm.generate("Make one.", params, use_tqdm=False)
        ended = str(output.outputs[0].finish_reason)
    except RequestError as error:
        ended = f"refused: {str(error)[:100]}"
    seconds = time.perf_counter() - began
    time.sleep(max(0.0, 1.0 - seconds))  # so that free tokens can be counted
    rate = (free.tokens - before) / (time.perf_counter() - began)
    return {"ended": ended, "seconds": seconds, "free_tokens_per_s": rate}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all of them in one engine."""
    compilation = {"variants": ["sampled", "adjusted"], "wait_for": "all"}
    settings = {"max_num_seqs": 8, "max_model_len": 512, "show_progress": False}
    with LLM(args.model, compilation_config=compilation, **settings) as llm:
        return measure(llm)


FLAGS = {"model": {"nargs": "?", "default": "demo"}}
main = Benchmark("hostile_grammars", __doc__, FLAGS, run).main


if __name__ == "__main__":
    raise SystemExit(main())
