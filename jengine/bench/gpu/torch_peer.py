"""Stage: the same work by torch and transformers; runs in a Python environment that has them.

Attention is torch's scaled_dot_product_attention on contiguous caches, which have no pages to look
up. Models are transformers' with a static cache, compiled; weights are random.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers


class Lines:
    """The stage's result file, in the format of the other stages."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.seconds, self.began = path, seconds, time.monotonic()
        self.content: dict[str, Any] = {"status": "running", "lines": [], "left_out": []}
        self.write()

    def add(self, **line: Any) -> None:
        """Save one measurement."""
        self.content["lines"].append(line)
        self.write()

    @contextmanager
    def attempt(self, what: str, case: str) -> Iterator[None]:
        """Record an exception inside as a line, mark the stage as failed, and continue."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - kept, told and counted
            self.add(what=what, case=case, failed=f"{type(error).__name__}: {error}"[:600])

    def in_time(self, what: str) -> bool:
        """Whether time is left for a case; records it as not measured if not."""
        if time.monotonic() - self.began < self.seconds:
            return True
        self.content["left_out"].append(f"{what}: no time left")
        self.write()
        return False

    def write(self) -> None:
        self.content["seconds"] = round(time.monotonic() - self.began, 1)
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, self.path)


def best_seconds(
    run: Callable[[], Any], repeats: int, calls: int, device: str
) -> tuple[float, float]:
    """Best and median seconds per call, over repeats of `calls` calls each."""
    measured = []
    for _ in range(repeats + 1):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(calls):
            run()
        synchronize(device)
        measured.append((time.perf_counter() - began) / calls)
    return min(measured[1:]), statistics.median(measured[1:])


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def attention(case: dict[str, Any], repeats: int, calls: int, device: str) -> dict[str, Any]:
    """Time attention of one case over several caches in turn."""
    rows, context, new, kv_heads, group, dim = (
        case[name] for name in ("rows", "context", "new_tokens", "kv_heads", "group", "head_dim")
    )
    dtype = getattr(torch, case["dtype"])
    layers = max(2, min(16, case["layer_bytes"] // case["cache_bytes"]))
    keys, values = (
        torch.randn(layers, rows, kv_heads, context, dim, dtype=dtype, device=device)
        for _ in range(2)
    )
    q = torch.randn(rows, kv_heads * group, new, dim, dtype=dtype, device=device)
    # torch counts causal positions from the first key, so a chunk after a prefix needs a mask.
    mask = None
    if 1 < new < context:
        mask = torch.ones(new, context, dtype=torch.bool, device=device).tril(context - new)
    layer = 0

    def run() -> None:
        nonlocal layer
        torch.nn.functional.scaled_dot_product_attention(
            q,
            keys[layer],
            values[layer],
            attn_mask=mask,
            is_causal=new == context > 1,
            enable_gqa=True,
        )
        layer = (layer + 1) % layers

    best, median = best_seconds(run, repeats, calls, device)
    line = {"best_us": round(best * 1e6, 2), "median_us": round(median * 1e6, 2)}
    if new == 1:
        return {**line, "gb_s": round(case["cache_bytes"] / best / 1e9, 1)}
    return {**line, "tflop_s": round(case["operations"] / best / 1e12, 2)}


def build(config: dict[str, Any], device: str) -> Any:
    """transformers' model with random weights, created on the device."""
    settings = transformers.AutoConfig.for_model(**config)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            settings, dtype=getattr(torch, config["torch_dtype"]), attn_implementation="sdpa"
        )
    return model.eval()


class TokenClock(transformers.StoppingCriteria):
    """A stopping criterion that never stops, and records each token's time."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.times: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        synchronize(self.device)
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def decode(model: Any, rows: int, context: int, new: int, device: str) -> dict[str, Any]:
    """Time per output token after the first, in the second run; the first run compiles."""
    options = {"cache_implementation": "static", "disable_compile": device == "cpu"}
    for _ in range(2):
        ids = torch.randint(1, model.config.vocab_size, (rows, context), device=device)
        clock = TokenClock(device)
        synchronize(device)
        began = time.perf_counter()
        model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new,
            min_new_tokens=new, pad_token_id=0, stopping_criteria=[clock], **options,
        )  # fmt: skip
    steps = [later - earlier for earlier, later in itertools.pairwise(clock.times)]
    step = statistics.median(steps)
    return {
        "rows": rows, "context": context, "reading_ms": round(step * 1e3, 3),
        "tok_s": round(rows / step, 1), "first_token_ms": round((clock.times[0] - began) * 1e3, 2),
    }  # fmt: skip


def main() -> None:
    """Attention, then models, as long as time is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    lines = Lines(args.part, args.seconds)
    lines.content["versions"] = {
        "torch": torch.__version__, "transformers": transformers.__version__,
    }  # fmt: skip
    work = json.loads(args.work.read_text(encoding="utf-8"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines.content["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    torch.manual_seed(0)
    with torch.inference_mode():
        for case in work["attention"]:
            if lines.in_time(f"attention {case['name']}"):
                what = "decode attention" if case["new_tokens"] == 1 else "prefill attention"
                with lines.attempt(what, case["name"]):
                    line = attention(case, work["repeats"], work["calls"], device)
                    lines.add(what=what, case=case["name"], implementation="torch SDPA", **line)
        models: dict[str, Any] = {}
        for rows, context in work["decode"]:
            for name, config in work["models"].items():
                shape = f"{name} decode {rows} x {context}"
                if not lines.in_time(shape):
                    continue
                with lines.attempt("decode", shape):
                    if name not in models:
                        models[name] = build(config, device)
                    line = decode(models[name], rows, context, work["steps"], device)
                    lines.add(what="decode", model=name, implementation="transformers", **line)
    failed = any("failed" in line for line in lines.content["lines"])
    lines.content["status"] = "failed" if failed else "done"
    lines.write()


if __name__ == "__main__":
    main()
