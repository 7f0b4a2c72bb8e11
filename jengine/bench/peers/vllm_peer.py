"""vLLM on a trace, in one process, greedy."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def main() -> None:
    """Load the model, then run the trace once per input line."""
    # vLLM logs to standard output, where the answers go.
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    began = time.perf_counter()
    import vllm

    llm = vllm.LLM(
        settings["model"],
        skip_tokenizer_init=True,
        dtype=settings["dtype"],
        max_model_len=settings["max_model_len"],
        max_num_seqs=settings["max_num_seqs"],
        enable_prefix_caching=settings["prefix_caching"],
        load_format=settings["load_format"],
        gpu_memory_utilization=settings["memory_share"],
        speculative_config=settings["speculative_config"],
    )

    def read(path: str) -> tuple[list[Any], list[Any]]:
        with open(path, encoding="utf-8") as file:
            trace = [json.loads(line) for line in file]
        options = {"temperature": 0, "ignore_eos": True, "detokenize": False}
        return (
            [{"prompt_token_ids": item["prompt_token_ids"]} for item in trace],
            [vllm.SamplingParams(max_tokens=item["max_tokens"], **options) for item in trace],
        )

    prompts, params = read(settings["trace"])
    drafts = settings["speculative_config"]
    version = f"vllm {vllm.__version__}" + (f", drafts by {drafts['method']}" if drafts else "")
    ready = {"ready": version, "startup_s": time.perf_counter() - began}
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        if "trace" in (words := json.loads(line)):
            prompts, params = read(words["trace"])
        llm.reset_prefix_cache()
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        count = sum(len(output.outputs[0].token_ids) for output in outputs)
        print(json.dumps({"seconds": seconds, "generated": count}), file=answers, flush=True)


if __name__ == "__main__":
    main()
