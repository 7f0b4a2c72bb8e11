"""One model over workers that jengine starts on a Ray cluster; this program needs no device.

    python ray_workers.py [--model MODEL] [--tensor-parallel-size N]
    python ray_workers.py --cpu-workers 2

Joins the cluster of RAY_ADDRESS, or starts a local one. README.md says what to expect.
"""

import argparse
from typing import Any

import jengine

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="demo")
parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs of all workers")
parser.add_argument("--cpu-workers", type=int, help="on one machine without GPUs: so many workers")
given = parser.parse_args()
settings: dict[str, Any] = {"tensor_parallel_size": given.tensor_parallel_size}
if given.cpu_workers:  # threads enough for collectives, and less than a core each
    environment = {"JAX_PLATFORMS": "cpu", "NPROC": "16"}
    options = {"workers": given.cpu_workers, "cpus": 0.5, "environment": environment}
    settings = {"executor_options": options}

PROMPTS = ["Once upon a time", "Once there was a king"]

with jengine.LLM(given.model, executor="ray", **settings) as llm:
    params = jengine.SamplingParams(max_tokens=16, temperature=0)
    for output in llm.generate(PROMPTS, params):
        print(output.prompt, output.outputs[0].text)
    for worker, memory in zip(llm.health(probe=True), llm.call_workers("memory"), strict=True):
        print(worker.rank, worker.where, f"{memory.weights:,} bytes of weights")
