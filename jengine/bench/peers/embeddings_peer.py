"""Embeddings by vLLM, sentence-transformers, or transformers with the same pooling.

Prompts are sorted by length and padded in batches of 32, as sentence-transformers does; vLLM is
given all of them at once. Their mean hidden state, normalised, is the embedding.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

BATCH = 32
Embed = Callable[[list[list[int]]], None]


def in_batches(forward: Callable[[Any, Any], Any]) -> Embed:
    """Returns a function that embeds prompts in batches, longest first."""
    import torch

    def embed(prompts: list[list[int]]) -> None:
        longest_first = sorted(prompts, key=len, reverse=True)
        for begin in range(0, len(prompts), BATCH):
            batch = longest_first[begin : begin + BATCH]
            ids = torch.zeros(len(batch), len(batch[0]), dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, prompt in enumerate(batch):
                ids[row, : len(prompt)], mask[row, : len(prompt)] = torch.tensor(prompt), 1
            with torch.inference_mode():
                forward(ids, mask)

    return embed


def of_transformers(settings: dict[str, Any]) -> tuple[Embed, str]:
    """transformers with mean pooling, as sentence-transformers does."""
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(
        settings["model"], dtype=getattr(torch, settings["dtype"])
    ).eval()

    def forward(ids: Any, mask: Any) -> Any:
        states = model(ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(states.dtype)
        mean = (states * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1)

    return in_batches(forward), f"transformers {transformers.__version__}"


def of_sentence_transformers(settings: dict[str, Any]) -> tuple[Embed, str]:
    import sentence_transformers  # pyrefly: ignore
    import torch

    model = sentence_transformers.SentenceTransformer(
        settings["model"], device="cpu",
        model_kwargs={"dtype": getattr(torch, settings["dtype"])},
    ).eval()  # fmt: skip

    def forward(ids: Any, mask: Any) -> Any:
        found = model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]
        return torch.nn.functional.normalize(found, dim=-1)

    return in_batches(forward), f"sentence-transformers {sentence_transformers.__version__}"


def of_vllm(settings: dict[str, Any]) -> tuple[Embed, str]:
    import vllm  # pyrefly: ignore

    llm = vllm.LLM(
        settings["model"], runner="pooling", dtype=settings["dtype"],
        pooler_config=vllm.config.PoolerConfig(seq_pooling_type="MEAN"),
    )  # fmt: skip

    def embed(prompts: list[list[int]]) -> None:
        llm.embed([{"prompt_token_ids": ids} for ids in prompts], use_tqdm=False)

    return embed, f"vllm {vllm.__version__}"


PEERS: dict[str, Callable[[dict[str, Any]], tuple[Embed, str]]] = {
    "transformers": of_transformers,
    "sentence-transformers": of_sentence_transformers,
    "vllm": of_vllm,
}


def main() -> None:
    """Load the model, then embed all prompts once per input line."""
    # vLLM logs to standard output, where the answers go.
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    began = time.perf_counter()
    embed, version = PEERS[settings["peer"]](settings)
    with open(settings["trace"], encoding="utf-8") as file:
        prompts = json.load(file)
    ready = {"ready": version, "startup_s": time.perf_counter() - began}
    print(json.dumps(ready), file=answers, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        embed(prompts)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "generated": len(prompts)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
