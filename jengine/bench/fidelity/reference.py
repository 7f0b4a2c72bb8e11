"""Writes random models with transformers, and scores tokens with torch: a child process's program.

In: a JSON object per line on stdin. Out: one per line on stdout, arrays as .npy files. It imports
nothing of jengine, and nothing imports it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import transformers
from transformers.utils import logging

# Wide enough that logits differ by several units, narrow enough that float32 is exact to 1e-5.
GAIN = 1.3
SPREAD = 0.2  # of norms and biases around where they start
BUFFERS = ("e_score_correction_bias", "layer_scalar")


def written_config(job: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that transformers makes of some settings."""
    made = getattr(transformers, job["architecture"]).config_class(**job["settings"])
    return json.loads(made.to_json_string(use_diff=False)) | {
        "architectures": [job["architecture"]]
    }


def write(job: Mapping[str, Any]) -> dict[str, Any]:
    """A folder with random weights of a dtype; how many parameters there are."""
    model_class = getattr(transformers, job["architecture"])
    torch.manual_seed(job["seed"])
    model = model_class(model_class.config_class(**job["settings"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                # Shared experts that are none have weights without columns.
                parameter.normal_(0.0, GAIN / max(parameter.shape[-1], 1) ** 0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * SPREAD)
            # Nothing else scales its scores.
            if job["unscaled"] and name.endswith("q_norm.weight"):
                parameter.mul_(parameter.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith(BUFFERS):
                buffer.add_(torch.randn_like(buffer) * SPREAD)
    model.to(getattr(torch, job["dtype"])).save_pretrained(job["folder"])
    return {"parameters": sum(parameter.numel() for parameter in model.parameters())}


def score(job: Mapping[str, Any]) -> dict[str, Any]:
    """Log-probabilities after each token, [sequences, tokens, vocab], to a file."""
    dtype = getattr(torch, job["dtype"])
    model = transformers.AutoModelForCausalLM.from_pretrained(job["folder"], dtype=dtype)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    model.eval()
    with torch.no_grad():
        rows = [
            model(torch.tensor([tokens]), use_cache=False).logits[0] for tokens in job["tokens"]
        ]
    np.save(job["out"], torch.stack([row.double().log_softmax(-1) for row in rows]).numpy())
    return {}


OPERATIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "config": written_config,
    "write": write,
    "score": score,
}


def main() -> None:
    """Answer until stdin ends."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = {"answer": OPERATIONS[job["operation"]](job)}
        except Exception as error:  # noqa: BLE001 - whatever transformers refuses is the answer
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
