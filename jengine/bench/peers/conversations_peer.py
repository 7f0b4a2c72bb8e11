"""vLLM on lists of prompts, each prompt alone, with a KV connector or without."""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

BLOCK = 32  # tokens; the smallest for which its attention on processors is meant


def main() -> None:
    """Load the model, then answer each input line's prompts, in order."""
    # vLLM logs to standard output, where the answers go.
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    began = time.perf_counter()
    import vllm

    llm = vllm.LLM(
        settings["model"],
        skip_tokenizer_init=True,
        max_model_len=settings["max_model_len"],
        max_num_seqs=settings["max_num_seqs"],
        block_size=BLOCK,
        num_gpu_blocks_override=settings["cache_tokens"] // BLOCK,
        enable_prefix_caching=True,
        disable_log_stats=False,  # times of requests are among the statistics
        **settings["tier"],
    )
    params = vllm.SamplingParams(
        max_tokens=settings["answer_tokens"], temperature=0, ignore_eos=True, detokenize=False
    )

    def ask(prompt: list[int]) -> tuple[float, list[int]]:
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        return output.metrics.first_token_latency, list(output.outputs[0].token_ids)

    longest = settings["max_model_len"] - settings["answer_tokens"]
    for length in (longest, longest // 8, longest // 8):  # the first ones wait for its warm-up
        ask([3] * length)
    llm.reset_prefix_cache()
    ready = {"ready": f"vllm {vllm.__version__}", "startup_s": time.perf_counter() - began}
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        found = [ask(prompt) for prompt in json.loads(line)["prompts"]]
        seconds, tokens = zip(*found, strict=True)
        print(json.dumps({"seconds": seconds, "answers": tokens}), file=answers, flush=True)


if __name__ == "__main__":
    main()
