"""One model over workers that jengine starts on a Ray cluster; this program needs no device.

    python ray_workers.py [WORKERS] [MODEL]

Joins the cluster of RAY_ADDRESS, or starts a local one. README.md says what to expect.
"""

import sys

import jengine

workers, model = [*sys.argv[1:], None, None][:2]
options = {"workers": int(workers)} if workers else {}
if (
    workers
):  # on one machine without GPUs: threads enough for collectives, and less than a core each
    options.update(cpus=0.5, environment={"JAX_PLATFORMS": "cpu", "NPROC": "16"})

PROMPTS = ["Once upon a time", "Once there was a king"]

with jengine.LLM(model or "demo", executor="ray", executor_options=options) as llm:
    params = jengine.SamplingParams(max_tokens=16, temperature=0)
    for output in llm.generate(PROMPTS, params):
        print(output.prompt, output.outputs[0].text)
    for worker, memory in zip(llm.health(probe=True), llm.call_workers("memory"), strict=True):
        print(worker.rank, worker.where, f"{memory.weights:,} bytes of weights")
