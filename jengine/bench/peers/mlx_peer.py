"""MLX on traces, in one process, greedy. Random weights of a model that mlx_lm knows."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Build the model, then run a trace per input line."""
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    began = time.perf_counter()
    import mlx.core as mx
    import mlx_lm
    from mlx_lm.generate import BatchGenerator

    config = json.loads((Path(settings["model"]) / "config.json").read_text(encoding="utf-8"))
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.set_dtype(getattr(mx, settings["dtype"]))
    mx.eval(model.parameters())
    version = f"mlx {mx.__version__}, mlx-lm {mlx_lm.__version__}"
    ready = {"ready": version, "startup_s": time.perf_counter() - began}
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        path = json.loads(line).get("trace", settings["trace"])
        items = [json.loads(one) for one in Path(path).read_text(encoding="utf-8").splitlines()]
        began, count = time.perf_counter(), 0
        generator = BatchGenerator(model, completion_batch_size=settings["max_num_seqs"])
        generator.insert(
            [item["prompt_token_ids"] for item in items], [item["max_tokens"] for item in items]
        )
        while responses := generator.next_generated():
            count += len(responses)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "generated": count}), file=answers, flush=True)


if __name__ == "__main__":
    main()
