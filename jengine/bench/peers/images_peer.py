"""Image question answering by transformers: Qwen2-VL in left-padded batches."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")


class ImagesModel:
    """The model, its image processor, and the prompt text after each image."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch
        import transformers
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        kind = transformers.Qwen2VLForConditionalGeneration
        dtype = getattr(torch, settings["dtype"])
        self.model: Any = kind.from_pretrained(settings["model"], dtype=dtype).eval()
        self.processor = Qwen2VLImageProcessorPil.from_pretrained(settings["model"])
        self.settings = settings
        self.version = f"transformers {transformers.__version__}"

    def run(self, number: int) -> None:
        """Answer all requests of a round."""
        pictures, size = self.pictures(number), self.settings["batch"]
        longest_first = sorted(pictures, key=lambda one: one.size, reverse=True)
        for begin in range(0, len(pictures), size):
            self.answer(longest_first[begin : begin + size])

    def pictures(self, number: int) -> list[Any]:
        """The same images as `jengine.bench.images` generates."""
        import numpy as np

        rng = np.random.default_rng((7, number))
        low, high = self.settings["sides"]
        sizes = rng.integers(low, high, (self.settings["pictures"], 2), endpoint=True)
        return [rng.integers(0, 256, (*size, 3), np.uint8) for size in sizes]

    def answer(self, pictures: list[Any]) -> None:
        """Greedy answers of one length."""
        import torch

        config, found = self.model.config, self.processor(pictures, return_tensors="pt")
        counts = (found["image_grid_thw"].prod(-1) // 4).tolist()
        around = [config.vision_start_token_id], [config.vision_end_token_id]
        rows = [
            around[0] + [config.image_token_id] * count + around[1] + self.settings["text"]
            for count in counts
        ]
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        with torch.inference_mode():
            self.model.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, eos_token_id=None,
                mm_token_type_ids=(ids == config.image_token_id).int(), pad_token_id=0,
                pixel_values=found["pixel_values"].to(self.model.dtype),
                image_grid_thw=found["image_grid_thw"], max_new_tokens=self.settings["answer"],
            )  # fmt: skip


def main() -> None:
    """Load the model, then answer a round per input line."""
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    began = time.perf_counter()
    answering = ImagesModel(settings)
    ready = {"ready": answering.version, "startup_s": time.perf_counter() - began}
    print(json.dumps(ready), file=answers, flush=True)
    for number, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        answering.run(number)
        found = {"seconds": time.perf_counter() - began, "generated": settings["pictures"]}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
