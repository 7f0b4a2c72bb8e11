"""A driver of Ray Data for tests, with a cluster of its own: parquet in, parquet out.

usage: python -m tests.integrations.ray_data_program SCENARIO FOLDER; the last line is JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet
import ray
from ray.cluster_utils import Cluster

from jengine.integrations.ray_data import JengineProcessorConfig, build_processor

SMALL = {
    "max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 128, "enforce_eager": True,
}  # fmt: skip
# Starts without a compiler, and takes its time.
SCRIPTED = {
    "executor": "tests.server.scripted:Executor",
    "executor_options": {"step_seconds": 0.2, "checks": False},
    "max_num_seqs": 8,
}
SAMPLING = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
# One actor each for what needs no device, and few of the machine's cores.
LIGHT = {
    "chat_template_stage": {"concurrency": 1, "num_cpus": 0.1},
    "tokenize_stage": {"concurrency": 1, "num_cpus": 0.1},
    "detokenize_stage": {"concurrency": 1, "num_cpus": 0.1},
}
COUNT = 400
ADAPTED, SEVERAL, UNSCORED = 5, 6, 7  # rows
TWO = {"n": 2, "temperature": 0.5, "seed": 7}


def asked(row: dict[str, Any]) -> dict[str, Any]:
    text = f"What is {row['id'] % 50} + 3?"
    return {"messages": [{"role": "user", "content": text}], "sampling_params": SAMPLING}


def answered(row: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "prompt", "generated_text", "num_generated_tokens", "num_input_tokens")
    return {name: row[name] for name in names}


def killed(folder: Path) -> dict[str, Any]:
    """One of four actors on three nodes is killed in the middle."""
    ray.data.DataContext.get_current().wait_for_min_actors_s = 400
    ray.data.range(COUNT).write_parquet(str(folder / "in"))
    config = JengineProcessorConfig(
        model_source="demo", engine_kwargs=dict(SCRIPTED), concurrency=(4, 4), batch_size=8,
        **LIGHT,
        # Not on the head, which reads and writes files.
        placement_group_config={"bundles": [{"CPU": 1, "engine": 1}]},
    )  # fmt: skip
    processor = build_processor(config, preprocess=asked, postprocess=answered)
    given = ray.data.read_parquet(str(folder / "in")).repartition(COUNT // 8)  # tasks of 8 rows
    rows = processor(given)
    seen: list[int] = []
    replaced = threading.Event()

    def kill_one() -> None:
        """While all have rows, which take 20 seconds and more. Another one has to begin."""
        while len(engine_actors("submit")) < 4:
            time.sleep(0.1)
        time.sleep(3)
        seen.extend(engine_actors())
        os.kill(seen[0], signal.SIGKILL)
        while not set(engine_actors()) - set(seen):
            time.sleep(0.1)
        replaced.set()

    thread = threading.Thread(target=kill_one, daemon=True)
    thread.start()
    rows.write_parquet(str(folder / "out"))
    thread.join(10)
    found = pyarrow.parquet.read_table(folder / "out").to_pylist()
    return {"rows": found, "count": COUNT, "actors": len(seen), "replaced": replaced.is_set()}


def engine_actors(doing: str = "") -> list[int]:
    """Processes of the engine's stage, which Ray names after it and what they do."""
    names = {
        one.pid: " ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])
    }
    return [pid for pid, name in names.items() if "EngineStep" in name and doing in name]


def generated(folder: Path) -> dict[str, Any]:
    """The demo model: answers, a row that fails, one by an adapter, one of two, metrics."""
    config = JengineProcessorConfig(
        model_source="demo", engine_kwargs={**SMALL, "enable_lora": True}, batch_size=4,
        should_continue_on_error=True, dynamic_lora_loading_path=str(folder), **LIGHT,
    )  # fmt: skip

    def some_fail(row: dict[str, Any]) -> dict[str, Any]:
        sampling = {**SAMPLING, "temperature": -1.0 if row["id"] == 3 else 0.0, "logprobs": 1}
        if row["id"] == SEVERAL:
            sampling |= TWO
        if row["id"] == UNSCORED:  # only the detokenizer's stage makes its text
            del sampling["logprobs"]
        name = "shout" if row["id"] == ADAPTED else "demo"
        return {**asked(row), "sampling_params": sampling, "model": name}

    def kept(row: dict[str, Any]) -> dict[str, Any]:
        scores, answers = row["logprobs"], row["answers"]
        texts = answers if answers is None else [one["generated_text"] for one in answers]
        first = None if scores is None else max(one["logprob"] for one in scores[0].values())
        return {**answered(row), "first": first, "texts": texts}

    processor = build_processor(config, preprocess=some_fail, postprocess=kept)
    names = [*processor.stages]
    rows = processor(ray.data.range(8)).take_all()
    return {
        "rows": [slim(row) for row in rows],
        "stages": names,
        "engine": SMALL,
        "sampling": SAMPLING,
        "two": TWO,
        "metrics": metrics(),
    }


def metrics() -> str:
    """What Prometheus gets from the node, whose agent has the numbers of its actors."""
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    end = time.monotonic() + 30
    while True:
        text: str = urllib.request.urlopen(url, timeout=20).read().decode()
        if "jengine_" in text or time.monotonic() > end:
            return text
        time.sleep(1)


def slim(row: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "generated_text", "first", "texts", "prompt", "__inference_error__")
    return {name: row.get(name) for name in names}


def pooled(folder: Path) -> dict[str, Any]:
    """A pooling model's embeddings of texts."""
    config = JengineProcessorConfig(
        model_source="demo", engine_kwargs=dict(SMALL), task_type="embed", batch_size=4,
        chat_template_stage=False, detokenize_stage=False,
    )  # fmt: skip
    processor = build_processor(
        config,
        preprocess=lambda row: {"prompt": f"number {row['id']}"},
        postprocess=lambda row: {"id": row["id"], "size": len(row["embeddings"])},
    )
    return {"rows": processor(ray.data.range(6)).take_all()}


def scored(folder: Path) -> dict[str, Any]:
    """Classes of tokens by a decoder, and scores of pairs by a cross-encoder."""

    def numbers(model: str, task: str, rows: list[dict[str, Any]]) -> list[Any]:
        config = JengineProcessorConfig(
            model_source=str(folder / model),
            engine_kwargs={
                "dtype": "float32", "skip_tokenizer_init": True, "max_num_seqs": 8,
                "enforce_eager": True,
            },
            task_type=task, batch_size=4, chat_template_stage=False, tokenize_stage=False,
            detokenize_stage=False,
        )  # fmt: skip
        processor = build_processor(config)
        found = processor(ray.data.from_items(rows)).take_all()
        return [[row["id"], *map(float, row["embeddings"])] for row in found]

    given = json.loads((folder / "rows.json").read_text())
    return {
        "classes": numbers("decoder", "classify", given["classes"]),
        "scores": numbers("encoder", "score", given["scores"]),
    }


def grown(folder: Path) -> dict[str, Any]:
    """A pool of one to three actors, with work for more than one."""
    config = JengineProcessorConfig(
        model_source="demo", engine_kwargs=dict(SCRIPTED), concurrency=(1, 3), batch_size=4,
        placement_group_config={"bundles": [{"CPU": 0.2}]}, **LIGHT,
    )  # fmt: skip
    processor = build_processor(config, preprocess=asked, postprocess=answered)
    done, most = threading.Event(), [0]

    def watch() -> None:
        while not done.wait(0.5):
            most.append(len(engine_actors()))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    rows = processor(ray.data.range(COUNT).repartition(COUNT // 4)).take_all()
    done.set()
    thread.join(10)
    return {"ids": sorted(row["id"] for row in rows), "most": max(most)}


def main() -> None:
    scenario, folder = sys.argv[1], Path(sys.argv[2])
    ray.data.DataContext.get_current().enable_progress_bars = False
    cluster = Cluster(True, head_node_args={"num_cpus": 3, "include_dashboard": False})
    try:
        for _ in range(2 if scenario == "killed" else 0):
            cluster.add_node(num_cpus=3, resources={"engine": 2})
        ray.init(address=cluster.address, log_to_driver=False)
        told = globals()[scenario](folder)
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
