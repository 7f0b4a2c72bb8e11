"""Rows a second of Ray Data with one actor, in turns with one process that has the same rows.

    python -m jengine.bench.ray_rows [MODEL] [--rows 1000] [--tokens 32] [--seqs 32] [--turns 3]
        [--output-json FILE]

Both are given conversations, and make text of them: chat template, tokenizer and detokenizer count.
Starting does not: seconds of Ray Data are those from the first row that reaches the engine to the
last one that comes back. Processor time is that of everything that Ray started, and of the process.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from typing import Any

import psutil
import ray

from jengine.api.llm import LLM
from jengine.bench.frame import Benchmark
from jengine.integrations.ray_data import JengineProcessorConfig, build_processor

# One actor each for what needs no device, of a fraction of a core.
LIGHT = {
    f"{name}_stage": {"concurrency": 1, "num_cpus": 0.1}
    for name in ("chat_template", "tokenize", "detokenize")
}
MODEL_LENGTH = 256


class Turns:
    """What both sides run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.engine = {
            "max_model_len": MODEL_LENGTH, "max_num_seqs": args.seqs,
            "enable_prefix_caching": False, "compilation_config": {"wait_for": "all"},
        }  # fmt: skip
        self.sampling = {"temperature": 0.0, "max_tokens": args.tokens, "ignore_eos": True}

    def by_ray(self) -> tuple[float, float]:
        """Seconds and processor seconds of the rows through Ray Data."""
        config = JengineProcessorConfig(
            model_source=self.args.model, engine_kwargs=self.engine, concurrency=1,
            batch_size=self.args.batch, **LIGHT,
        )  # fmt: skip
        sampling = self.sampling

        def asked(row: dict[str, Any]) -> dict[str, Any]:
            return {"messages": chat(row["id"]), "sampling_params": sampling}

        def kept(row: dict[str, Any]) -> dict[str, Any]:
            names = ("id", "generated_text", "num_generated_tokens", "time_taken_llm")
            return {"at": time.time(), **{name: row[name] for name in names}}

        processor = build_processor(config, preprocess=asked, postprocess=kept)
        before = processor_seconds()
        rows, came = [], 0.0
        for row in processor(ray.data.range(self.args.rows)).iter_rows():
            rows.append(row)
            came = time.time()
        checked([row["num_generated_tokens"] for row in rows], self.args)
        began = min(row["at"] - row["time_taken_llm"] for row in rows)
        return came - began, processor_seconds() - before

    def by_process(self, llm: LLM) -> tuple[float, float]:
        """The same of the engine in this process."""
        params = llm.get_default_sampling_params().clone(**self.sampling)
        began, before = time.time(), time.process_time()
        outputs = llm.chat([chat(row) for row in range(self.args.rows)], params, use_tqdm=False)
        seconds = time.time() - began
        checked([len(one.outputs[0].token_ids) for one in outputs], self.args)
        return seconds, time.process_time() - before


def chat(row: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What is {row} + {row // 7}? And what is 3 times that?"}]


def checked(tokens: list[int], args: argparse.Namespace) -> None:
    """Every row has been answered in full."""
    assert tokens == [args.tokens] * args.rows, f"{len(tokens)} rows, {sum(tokens)} tokens"


def processor_seconds() -> float:
    """Processor time of the processes below this one, with those that have ended."""
    own, total = psutil.Process(), 0.0
    for one in own.children(recursive=True):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure both in turns."""
    turns = Turns(args)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # of 15: both sides are to have the same
    ray.init(include_dashboard=False, num_cpus=4, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    of_ray, of_process, load = [], [], []
    try:
        with LLM(args.model, show_progress=False, **turns.engine) as llm:
            turns.by_process(llm)  # the first rows of any process are slower
            for _ in range(args.turns):
                load.append(round(os.getloadavg()[0], 1))
                of_process.append(turns.by_process(llm))
                of_ray.append(turns.by_ray())
    finally:
        ray.shutdown()
    rates = [[args.rows / seconds for seconds, _ in each] for each in (of_process, of_ray)]
    return {
        "model": args.model, "rows": args.rows, "tokens": args.tokens, "seqs": args.seqs,
        "load": load,
        "process_rows_per_s": [round(one, 2) for one in rates[0]],
        "ray_rows_per_s": [round(one, 2) for one in rates[1]],
        "ratio": round(median(b / a for a, b in zip(*rates, strict=True)), 3),
        "process_processor_s": [round(one, 1) for _, one in of_process],
        "ray_processor_s": [round(one, 1) for _, one in of_ray],
    }  # fmt: skip


def printed(result: dict[str, Any]) -> str:
    return (
        f"rows a second: {result['process_rows_per_s']} in one process, "
        f"{result['ray_rows_per_s']} by Ray Data: {result['ratio']:.2f} of it"
    )


ray_rows = Benchmark(
    "ray_rows",
    "Rows a second of Ray Data with one actor, beside one process.",
    {
        "model": {"nargs": "?", "default": "demo"},
        "--rows": 1000, "--tokens": 32, "--seqs": 32, "--batch": 32, "--turns": 3,
    },
    run,
    printed,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(ray_rows.main())
