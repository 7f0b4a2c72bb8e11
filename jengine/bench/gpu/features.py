"""Stage: features that may not change an answer, on this device: each engine's greedy answers equal
those of XLA's plain attention. With `--few`, under flags that a stage gives XLA.

The demo model in float32, whose weights are real: a wrong number becomes another word. One process
for all engines, each with few programs.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from jengine.adapters import LoRARequest
from jengine.api.llm import LLM
from jengine.bench.gpu.part import StageResult, run_stage
from jengine.outputs import CompletionOutput
from jengine.sampling_params import SamplingParams
from jengine.weights.resolve import resolve_model

PROMPTS = [f"{first} {then}" for first in ("Once", "Tell me", "She said")
           for then in ("a cat", "the house in the", "why there are numbers")]  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=32, logprobs=1, ignore_eos=True)
FEW = SamplingParams(temperature=0, max_tokens=4, logprobs=1, ignore_eos=True)
TOLERANCE = 1e-3  # of log-probabilities
DRAFTS = {"num_speculative_tokens": 3}
ADAPTERS = {"enable_lora": True, "max_lora_rank": 4}
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 128,
    "num_gpu_blocks_override": 256, "show_progress": False,
    # Those that log-probabilities need, and no other.
    "compilation_config": {
        "decode_rows": [8, 32], "prefill_tokens": [128], "variants": ["scored"],
    },
}  # fmt: skip
FEATURES: Mapping[str, Mapping[str, Any]] = {
    "nothing else": {},
    "n-gram drafts": {"speculative_config": {"method": "ngram", **DRAFTS}},
    "a cache that offloads": {"kv_offloading_size": 0.1},
    "adapters": ADAPTERS,
    "several steps in one call": {"num_scheduler_steps": 4},
    "weights on the host": {"cpu_offload_gb": 0.002},
    "EAGLE drafts": {"speculative_config": {"method": "eagle", "model": "demo-eagle", **DRAFTS}},
    "suffix drafts": {"speculative_config": {"method": "suffix", **DRAFTS}},
    "blocks of 128 tokens": {"block_size": 128, "num_gpu_blocks_override": 32},
    "sums in one order": {"deterministic": True},
    "no prefix cache": {"enable_prefix_caching": False},
}
# Of these, what compilers' and allocators' settings are tried on.
FEW_FEATURES = ("nothing else", "several steps in one call", "a cache that offloads")
Answers = list[tuple[list[int], list[float]]]


def measure(part: StageResult, args: argparse.Namespace) -> None:
    """One line per feature."""
    params = FEW if args.dry_run else GREEDY
    adapter = LoRARequest("random", 1, str(write_adapter(part.path.with_name("adapter"))))
    plain, adapted = expected(part.path.with_name("plain-answers.json"), params, adapter)
    names = FEW_FEATURES if args.few else [*FEATURES]
    for name in part.in_time(names[: 2 if args.dry_run else None]):
        with part.attempt("feature", name), LLM("demo", **{**SETTINGS, **FEATURES[name]}) as llm:
            error = difference(answers(llm, params), plain)
            if FEATURES[name] is ADAPTERS:
                error = max(error, difference(answers(llm, params, adapter), adapted))
            part.add(what="feature", case=name, error=error, tolerance=TOLERANCE,
                     right=error < TOLERANCE)  # fmt: skip


def expected(file: Path, params: SamplingParams, adapter: LoRARequest) -> tuple[Answers, Answers]:
    """The answers of XLA's plain attention, without an adapter and with one. The first stage that
    asks writes them, so that one with other flags of XLA is compared with what XLA does without."""
    if file.exists():
        plain, adapted = json.loads(file.read_text("utf-8"))
        return plain, adapted
    with LLM("demo", **SETTINGS, **ADAPTERS, attention_backend="xla") as llm:
        found = answers(llm, params), answers(llm, params, adapter)
    assert math.isinf(difference(found[1], found[0])), "the adapter changes no answer"
    file.write_text(json.dumps(found), encoding="utf-8")
    return found


def answers(
    llm: LLM, params: SamplingParams, adapter: LoRARequest | None = None,
    prompts: Sequence[str] | Sequence[list[int]] = PROMPTS,
) -> Answers:  # fmt: skip
    """Tokens and their log-probabilities; asked twice, so that the second finds cached prefixes."""
    for _ in range(2):
        outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=adapter)
    found = [output.outputs[0] for output in outputs]
    return [(list(one.token_ids), logprobs_of(one)) for one in found]


def logprobs_of(answer: CompletionOutput) -> list[float]:
    assert answer.logprobs is not None
    return [
        step[token].logprob for token, step in zip(answer.token_ids, answer.logprobs, strict=True)
    ]


def difference(found: Answers, expected: Answers) -> float:
    """Largest difference of log-probabilities; infinite where tokens differ."""
    if [tokens for tokens, _ in found] != [tokens for tokens, _ in expected]:
        return math.inf
    pairs = zip(found, expected, strict=True)
    return max(float(np.abs(np.subtract(one, other)).max()) for (_, one), (_, other) in pairs)


def write_adapter(folder: Path) -> Path:
    """A random LoRA adapter of the demo model's queries and values."""
    folder.mkdir(exist_ok=True)
    config = json.loads((resolve_model("demo") / "config.json").read_text("utf-8"))
    rank, hidden = ADAPTERS["max_lora_rank"], config["hidden_size"]
    heads = {"q_proj": "num_attention_heads", "v_proj": "num_key_value_heads"}
    rng, tensors = np.random.default_rng(0), {}
    for layer in range(config["num_hidden_layers"]):
        for name, count in heads.items():
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            outputs = config[count] * config["head_dim"]
            for half, shape in (("A", (rank, hidden)), ("B", (outputs, rank))):
                tensors[f"{key}.lora_{half}.weight"] = rng.normal(0, 0.1, shape).astype("f4")
    save_file(tensors, folder / "adapter_model.safetensors")
    adapter = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [*heads]}
    (folder / "adapter_config.json").write_text(json.dumps(adapter), encoding="utf-8")
    return folder


if __name__ == "__main__":
    run_stage(measure)
