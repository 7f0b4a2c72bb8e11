"""transformers' `generate` on a trace: static left-padded batches, greedy."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import transformers


def run(model: Any, trace: list[dict[str, Any]], size: int) -> int:
    """Answer everything in batches of `size`; returns the number of requested tokens."""
    for begin in range(0, len(trace), size):
        batch = trace[begin : begin + size]
        width = max(len(item["prompt_token_ids"]) for item in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, item in enumerate(batch):
            prompt = torch.tensor(item["prompt_token_ids"])
            ids[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        steps = max(item["max_tokens"] for item in batch)
        model.generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            do_sample=False,
            max_new_tokens=steps,
            min_new_tokens=steps,
            pad_token_id=0,
        )
    return sum(item["max_tokens"] for item in trace)


def main() -> None:
    """Load the model, then run the trace once per input line."""
    settings = json.loads(sys.stdin.readline())
    began = time.perf_counter()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        settings["model"], dtype=getattr(torch, settings["dtype"])
    )
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    with open(settings["trace"], encoding="utf-8") as file:
        trace = [json.loads(line) for line in file]
    ready = {"ready": f"transformers {transformers.__version__}, torch {torch.__version__}"}
    print(json.dumps({**ready, "startup_s": time.perf_counter() - began}), flush=True)
    with torch.inference_mode():
        for _ in sys.stdin:
            began = time.perf_counter()
            count = run(model, trace, settings["max_num_seqs"])
            seconds = time.perf_counter() - began
            print(json.dumps({"seconds": seconds, "generated": count}), flush=True)


if __name__ == "__main__":
    main()
