"""Runs a model with torch and transformers, and writes what it computed as a bundle.

A standalone program, `python torch_reference.py JOB.json`, for a Python that has torch. It imports
nothing of jengine, and nothing imports it. In: a folder, dtypes and token ids. Out: a folder with
bundle.json and tensors.safetensors, which appears when it is complete.
"""

from __future__ import annotations

import gc
import hashlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
import transformers
from safetensors.numpy import save_file

FORMAT, VERSION = "jengine comparison", 1
# Most likely tokens that are kept of every distribution, whatever else is.
TOP = 20
# Names that families give to the decoder, its layers and their parts.
BODIES = ("model", "transformer")
LAYERS = ("layers", "h")
FINAL_NORMS = ("norm", "ln_f")
ATTENTIONS = ("self_attn", "attn")
MLPS = ("mlp", "block_sparse_moe")

Arrays = dict[str, np.ndarray]


class NotComparable(Exception):
    """The model cannot be run or its layers not be found; the message says why."""


def main(words: Sequence[str]) -> int:
    """Run one job. An error's message is the last line on stderr."""
    if len(words) != 1:
        sys.stderr.write("usage: python torch_reference.py JOB.json\n")
        return 2
    job = json.loads(Path(words[0]).read_text(encoding="utf-8"))
    try:
        write_bundle(job)
    except (NotComparable, OSError, ValueError, RuntimeError) as error:
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    return 0


def write_bundle(job: Mapping[str, Any]) -> None:
    """Run the truth, then the working dtype, one in memory at a time, and write both."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    arrays: Arrays = {}
    greedy: dict[str, Any] = {}
    with opened(job, "truth") as model:
        model_facts = facts(model)
        columns = run(job, "truth", model, arrays, greedy, {})
    with opened(job, "working") as model:
        run(job, "working", model, arrays, greedy, columns)
    for prompt, ids in columns.items():
        arrays[f"{prompt}.columns"] = ids
    out = Path(job["out"])
    out.mkdir(parents=True, exist_ok=True)
    save_file(arrays, str(out / "tensors.safetensors"))
    digest = hashlib.sha256((out / "tensors.safetensors").read_bytes()).hexdigest()
    description = {
        "format": FORMAT,
        "version": VERSION,
        "model": model_facts,
        "dtype": job["dtype"],
        "truth_dtype": job["truth_dtype"],
        "prompts": job["prompts"],
        "new_tokens": job["new_tokens"],
        "greedy": greedy,
        "software": software(job["device"]),
        "sha256": digest,
    }
    partial = out / ".bundle.json.partial"
    partial.write_text(json.dumps(description), encoding="utf-8")
    # Written last, so that a bundle with a description is complete.
    partial.replace(out / "bundle.json")


# --- one run -----------------------------------------------------------------------------------


@contextmanager
def opened(job: Mapping[str, Any], kind: str) -> Iterator[Any]:
    """The model in the dtype of a run. The truth computes wider, with the same rounded weights."""
    working = getattr(torch, job["dtype"])
    dtype = getattr(torch, job["truth_dtype"]) if kind == "truth" else working
    model = transformers.AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=dtype, local_files_only=True, trust_remote_code=False
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(working).to(parameter.dtype))
    # A loop over experts: the grouped matmul that may be the default takes no float64.
    if kind == "truth" and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    model.eval().to(job["device"])
    try:
        yield model
    finally:
        del model
        gc.collect()


def run(
    job: Mapping[str, Any],
    kind: str,
    model: Any,
    arrays: Arrays,
    greedy: dict[str, Any],
    columns: dict[int, np.ndarray],
) -> dict[int, np.ndarray]:
    """Add one run's results to `arrays` and `greedy`. Returns the vocabulary columns whose logits
    are kept."""
    kept = dict(columns)
    greedy[kind] = []
    for number, ids in enumerate(job["prompts"]):
        given = torch.tensor([ids], device=job["device"])
        with torch.no_grad(), watched(model) as seen:
            logits = model(given, use_cache=False).logits[0]
        if number not in kept and logits.shape[-1] > job["most_logits"]:
            best = logits.float().topk(job["most_logits"], dim=-1).indices
            kept[number] = best.to(torch.int32).cpu().numpy()
        values = {**seen, **scores(logits, ids, kept.get(number))}
        arrays.update({f"{kind}.{number}.{name}": value for name, value in values.items()})
        greedy[kind].append(continuation(model, given, job["new_tokens"]))
    return kept


def scores(logits: Any, ids: Sequence[int], columns: np.ndarray | None) -> Arrays:
    """The logits that are kept, what normalises them, those of the given tokens, the best ids."""
    exact = logits.double()
    following = torch.tensor(ids[1:], device=logits.device, dtype=torch.int64)
    given = exact[:-1].gather(1, following[:, None])[:, 0]
    kept = exact
    if columns is not None:
        kept = exact.gather(1, torch.from_numpy(columns).to(logits.device, torch.int64))
    return {
        "logits": as_float32(kept),
        "normalizer": as_float32(exact.logsumexp(-1)),
        "given": as_float32(given),
        "top": exact.topk(min(TOP, exact.shape[-1]), dim=-1).indices.int().cpu().numpy(),
    }


def continuation(model: Any, given: Any, new_tokens: int) -> dict[str, Any]:
    """Tokens that greedy decoding adds, with the best few logits of every step."""
    steps: dict[str, list[Any]] = {"tokens": [], "ids": [], "logits": []}
    past, ids = None, given
    for _ in range(new_tokens):
        with torch.no_grad():
            made = model(ids, past_key_values=past, use_cache=True)
        past = made.past_key_values
        last = made.logits[0, -1].double()
        best = last.topk(min(TOP, len(last)))
        steps["tokens"].append(int(best.indices[0]))
        steps["ids"].append(best.indices.tolist())
        steps["logits"].append(best.values.tolist())
        ids = best.indices[:1][None]
    return steps


# --- looking inside ----------------------------------------------------------------------------


@contextmanager
def watched(model: Any) -> Iterator[Arrays]:
    """The values at jengine's tap points during one forward pass, as float32 [tokens, hidden]."""
    seen: Arrays = {}
    body = part(model, BODIES)
    layers = part(body, LAYERS)
    hooks = [
        layers[0].register_forward_pre_hook(
            lambda _, args, kwargs: keep(seen, "embed", args or (kwargs["hidden_states"],)),
            with_kwargs=True,
        ),
        hooked(part(body, FINAL_NORMS), seen, "norm"),
    ]
    for number, layer in enumerate(layers):
        attention, mlp = residual_parts(layer)
        hooks.append(hooked(attention, seen, f"layers.{number}.attention"))
        hooks.append(hooked(mlp, seen, f"layers.{number}.mlp"))
        hooks.append(hooked(layer, seen, f"layers.{number}.output"))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def residual_parts(layer: Any) -> tuple[Any, Any]:
    """The modules whose outputs are added to the residual stream: norms, where those come last."""
    if hasattr(layer, "post_feedforward_layernorm"):
        return layer.post_attention_layernorm, layer.post_feedforward_layernorm
    return part(layer, ATTENTIONS), part(layer, MLPS)


def part(owner: Any, names: Sequence[str]) -> Any:
    """Return a module's first attribute with one of these names."""
    for name in names:
        if hasattr(owner, name):
            return getattr(owner, name)
    raise NotComparable(
        f"transformers' {type(owner).__name__} has no {' or '.join(names)}, so its values cannot be"
        " compared layer by layer. Versions 4.57 to 5 are known to work; this is transformers"
        f" {transformers.__version__}."
    )


def hooked(module: Any, seen: Arrays, name: str) -> Any:
    """Note a module's output by this name."""
    return module.register_forward_hook(lambda _, args, output: keep(seen, name, output))


def keep(seen: Arrays, name: str, value: Any) -> None:
    """Note a value [1, tokens, hidden]; some modules return it as the first of several."""
    first = value[0] if isinstance(value, tuple) else value
    seen[name] = as_float32(first.reshape(-1, first.shape[-1]))


def as_float32(tensor: Any) -> np.ndarray:
    """Copy to float32 on the host; a copy because safetensors writes only contiguous arrays."""
    return np.array(tensor.detach().float().cpu().numpy(), order="C")


# --- what it was -------------------------------------------------------------------------------


def facts(model: Any) -> dict[str, Any]:
    """Properties by which the engine checks that both run the same model."""
    config = model.config
    return {
        "architecture": type(model).__name__,
        "vocab_size": int(model.get_output_embeddings().weight.shape[0]),
        "hidden_size": int(config.hidden_size),
        "num_layers": len(part(part(model, BODIES), LAYERS)),
        "attention": str(config._attn_implementation),
    }


def software(device: str) -> dict[str, str]:
    """Versions, and the device."""
    on_gpu = device.startswith("cuda")
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "safetensors": safetensors.__version__,
        "device": torch.cuda.get_device_name() if on_gpu else f"cpu ({platform.machine()})",
        "threads": str(torch.get_num_threads()),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
