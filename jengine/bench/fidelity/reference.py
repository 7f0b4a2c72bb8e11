"""Child process: writes random transformers models and scores tokens with torch.

In: a JSON object per line on stdin. Out: one per line on stdout, arrays as .npy files. It imports
nothing of jengine, and nothing imports it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from transformers.models.auto import modeling_auto
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils import logging

# Wide enough that logits differ by several units, narrow enough that float32 is exact to 1e-5.
GAIN = 1.3
SPREAD = 0.2  # of norms and biases around where they start
BUFFERS = (
    "e_score_correction_bias", "layer_scalar", "final_logits_bias", "std_bias", "std_scale"
)  # fmt: skip
BOUNDS = {"put_min": -1.0, "put_max": 1.0}  # of what is clamped, and the side of 0 they are on
# What models add to shared weights is small beside these, or scores are all but one-hot.
OF_LOW_RANK, LOW_RANK_GAIN = "_adapter_list.", 0.5
QUERIES = ("q_norm.weight", "Attention.q.weight")
CONVOLUTIONS = ("conv1.weight", "conv2.weight")  # over time
RATE = 16000  # of speech
# Every so many weights in a row, and in a column, one is the largest code, and the next the
# lowest: each group of inputs that share a scale and a zero has both, however they are laid out.
BETWEEN_EXTREMES = 16
GROUP = 2 * BETWEEN_EXTREMES  # the fewest inputs that share a scale, where not all do
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ADAPTER_SPREAD = 0.15


def written_config(job: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that transformers writes for these settings."""
    made = getattr(transformers, job["architecture"]).config_class(**job["settings"])
    return json.loads(made.to_json_string(use_diff=False)) | {
        "architectures": [job["architecture"]]
    }


def write(job: Mapping[str, Any]) -> dict[str, Any]:
    """Write a model folder with random weights; returns the parameter count."""
    model_class = getattr(transformers, job["architecture"])
    torch.manual_seed(job["seed"])
    model = model_class(model_class.config_class(**job["settings"]))
    if job["settings"].get("tie_word_embeddings") is False:
        untie(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                # Shared experts that are none have weights without columns.
                convolves = parameter.ndim > 3 or name.endswith(CONVOLUTIONS)
                inputs = parameter[0].numel() if convolves else parameter.shape[-1]
                parameter.normal_(0.0, GAIN / max(inputs, 1) ** 0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * SPREAD)
            if OF_LOW_RANK in name:
                parameter.mul_(LOW_RANK_GAIN)
            # Nothing else scales its scores.
            if job["unscaled"] and name.endswith(QUERIES):
                parameter.mul_(getattr(model.config, "d_kv", parameter.shape[-1]) ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith(BUFFERS):
                buffer.add_(torch.randn_like(buffer) * SPREAD)
            if name[-7:] in BOUNDS:
                buffer.copy_(BOUNDS[name[-7:]] * (1 + torch.rand_like(buffer)))
        if job["largest_code"]:
            for parameter in model.parameters():
                if parameter.ndim > 1 and parameter.numel():
                    parameter.copy_(as_codes(parameter, job["largest_code"]))
    model.to(getattr(torch, job["dtype"])).save_pretrained(job["folder"])
    sees = getattr(model.config, "vision_config", None) is not None  # Gemma 4 may have no tower
    if sees and model.config.model_type in PROCESSORS:
        PROCESSORS[model.config.model_type](model.config).save_pretrained(job["folder"])
    if job["adapter_rank"]:
        adapt(model, Path(job["folder"]), job["adapter_rank"])
    return {"parameters": sum(parameter.numel() for parameter in model.parameters())}


def untie(model: transformers.PreTrainedModel) -> None:
    """Give a model an untied head: transformers 5 ties some heads unless the checkpoint contains
    one."""
    head = model.get_output_embeddings()
    if head is not None and head.weight is model.get_input_embeddings().weight:
        head.weight = deepcopy(head.weight)


def as_codes(weight: Tensor, largest: int) -> Tensor:
    """Quantize weights to symmetric integers with one scale."""
    scale = 2.5 * float(weight.std(correction=0)) / largest
    codes = (weight / scale).round().clamp(-largest, largest)
    rows, columns = (torch.arange(size) for size in weight.shape[-2:])
    diagonals = (rows[:, None] + columns) % BETWEEN_EXTREMES == 0
    lowest = (rows[:, None] + columns) % GROUP == 0
    codes = torch.where(diagonals, torch.where(lowest, -largest, largest), codes)
    last = ends(len(rows))[:, None] | ends(len(columns))
    return torch.where(last, torch.where(weight < 0, -largest, largest), codes) * scale


def ends(size: int) -> Tensor:
    """bool[size]: trailing indices, of a group too small to contain both extremes."""
    return torch.arange(size) >= size - size % GROUP


def adapt(model: transformers.PreTrainedModel, folder: Path, rank: int) -> None:
    """Write a random PEFT adapter, and the merged model."""
    tensors = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.endswith(ADAPTED):
            outputs, inputs = module.weight.shape
            down = torch.randn(rank, inputs) * GAIN / inputs**0.5
            up = torch.randn(outputs, rank) * ADAPTER_SPREAD
            module.weight.data.add_(2 * up @ down)
            tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
    if not tensors:
        raise ValueError("no module that adapters change")
    (folder / "adapter").mkdir()
    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / "adapter" / "adapter_model.safetensors")
    (folder / "adapter" / "adapter_config.json").write_text(
        json.dumps(
            {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ADAPTED}
        )
    )
    model.save_pretrained(folder / "merged")


class RoundedCache(transformers.DynamicCache):
    """A KV cache in int8 with one scale per token and head."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *given: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values; returns all of them, quantized and dequantized."""
        return super().update(as_int8(key_states), as_int8(value_states), *given, **named)


def as_int8(heads: Tensor) -> Tensor:
    """Quantize to int8 with a shared scale (rounded up to bfloat16), and dequantize."""
    exact = (heads.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-12)
    scale = ((exact.view(torch.int32) + 0xFFFF) >> 16 << 16).view(torch.float32)
    return (heads / scale).round() * scale


CACHES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "none": lambda config: {"use_cache": False},
    "int8": lambda config: {"past_key_values": RoundedCache(config=config), "use_cache": True},
}


def score(job: Mapping[str, Any]) -> dict[str, Any]:
    """Write log-probabilities after each token, [sequences, tokens, vocab], to a file."""
    rows = logits_of(causal(job), job)
    np.save(job["out"], torch.stack([row.double().log_softmax(-1) for row in rows]).numpy())
    return {}


def score_routed(job: Mapping[str, Any]) -> dict[str, Any]:
    """Write the same log-probabilities, and the experts that routers chose, [sequences, layers,
    tokens, chosen]; with given experts, as if they had chosen those. Returns for how many tokens
    and layers they would have chosen others."""
    given = torch.from_numpy(np.load(job["experts"])).flatten(0, 1) if job["experts"] else None
    choices = Choices(job["num_experts"], job["chosen"], given)
    with mock.patch("torch.topk", choices.topk), mock.patch.object(Tensor, "topk", choices.method):
        rows = logits_of(causal(job), job)
    found = torch.stack([row.double().log_softmax(-1) for row in rows]).numpy()
    layers = len(choices.made) // len(rows)
    experts = torch.stack(choices.made).unflatten(0, (len(rows), layers)) if layers else Tensor()
    np.savez(job["out"], found, experts.numpy())
    return {"replaced": choices.replaced}


TOPK = torch.topk


class Choices:
    """The experts that routers choose in one layer after the other, made or replaced."""

    def __init__(self, num_experts: int, chosen: int, given: Tensor | None) -> None:
        self._shape, self._given = (num_experts, chosen), given
        self.made: list[Tensor] = []
        self.replaced = 0
        self.method = lambda scores, *given, **named: self.topk(scores, *given, **named)

    def topk(self, scores: Tensor, k: int, *others: Any, **named: Any) -> Any:
        """torch.topk, of which the choice of experts (not that of groups of them) may be
        replaced."""
        found = TOPK(scores, k, *others, **named)
        if scores.ndim != 2 or (scores.shape[-1], k) != self._shape:
            return found
        experts = found.indices if self._given is None else self._given[len(self.made)]
        differ = experts.sort(-1).values != found.indices.sort(-1).values
        self.replaced += int(differ.any(-1).sum())
        self.made.append(experts)
        return torch.return_types.topk((scores.gather(1, experts), experts))


def causal(job: Mapping[str, Any]) -> transformers.PreTrainedModel:
    dtype = getattr(torch, job["dtype"])
    model = transformers.AutoModelForCausalLM.from_pretrained(job["folder"], dtype=dtype)
    # Gemma 4 skips positions in layers that read others' KV, and cannot where layers have no inputs
    # of their own. It skips none while hidden states are asked for.
    model.config.output_hidden_states = hasattr(model.config, "num_kv_shared_layers")
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.eval()


def logits_of(model: transformers.PreTrainedModel, job: Mapping[str, Any]) -> list[Tensor]:
    with torch.no_grad():
        return [
            model(torch.tensor([tokens]), **CACHES[job["cache"]](model.config)).logits[0]
            for tokens in job["tokens"]
        ]


def score_conditional(job: Mapping[str, Any]) -> dict[str, Any]:
    """Write log-probabilities after each token, [tokens, vocab] per sequence, given the encoder's
    inputs (text, audio or images), to a file."""
    model_class = getattr(transformers, job["architecture"])
    dtype = getattr(torch, job["dtype"])
    model = model_class.from_pretrained(job["folder"], dtype=dtype).eval()
    inputs, cache = INPUTS[job["reads"]], CACHES[job["cache"]]
    with np.load(job["sources"]) as found, torch.no_grad():
        arrays = iter(found.values())
        sources = [list(islice(arrays, count)) for count in job["counts"]]
        rows = [
            model(**inputs(model, source, tokens), **cache(model.config)).logits[0]
            for source, tokens in zip(sources, job["tokens"], strict=True)
        ]
    np.savez(job["out"], *(row.double().log_softmax(-1).numpy() for row in rows))
    return {}


Model = transformers.PreTrainedModel


def of_text(model: Model, source: list[np.ndarray], tokens: list[int]) -> dict[str, Tensor]:
    """Tokens for an encoder."""
    return {"input_ids": torch.tensor(source[0])[None], "decoder_input_ids": torch.tensor([tokens])}


def of_speech(model: Model, source: list[np.ndarray], tokens: list[int]) -> dict[str, Tensor]:
    """Features of samples for an encoder."""
    extractor = transformers.WhisperFeatureExtractor(
        feature_size=model.config.num_mel_bins, chunk_length=model.config.max_source_positions // 50
    )
    features = extractor(source[0], sampling_rate=RATE, return_tensors="pt").input_features
    return {
        "input_features": features.to(model.dtype), "decoder_input_ids": torch.tensor([tokens])
    }  # fmt: skip


def of_pictures(model: Model, source: list[np.ndarray], tokens: list[int]) -> dict[str, Tensor]:
    """Pixel inputs, and token ids with each image placeholder repeated once per embedding."""
    config, pixels, counts = model.config, dict[str, Tensor](), list[int]()
    if source:
        processor = PROCESSORS[config.model_type](config)
        found = processor([Image.fromarray(one) for one in source], return_tensors="pt")
        pixels = {"pixel_values": found["pixel_values"].to(model.dtype)}
        pixels |= {name: found[name] for name in PLACES if name in found}
        counts = counts_of(config, found)
    left = iter(counts)
    ids = [
        one for token in tokens for one in [token] * (next(left) if token == mark(config) else 1)
    ]
    given = torch.tensor([ids])
    kinds = {name: (given == mark(config)).long() for name in KINDS.get(config.model_type, ())}
    return {"input_ids": given, **pixels, **kinds}


def counts_of(config: Any, found: Mapping[str, Tensor]) -> list[int]:
    """Number of embeddings per image."""
    vision = config.vision_config
    if "image_grid_thw" in found:
        return (found["image_grid_thw"].prod(-1) // vision.spatial_merge_size**2).tolist()
    if "num_soft_tokens_per_image" in found:
        return found["num_soft_tokens_per_image"].tolist()
    if "num_patches" in found:
        sides = zip(vision.image_size, vision.patch_size, strict=True)
        of_tile = prod(size // (2 * patch) for size, patch in sides)
        return [of_tile * tiles for tiles in found["num_patches"].tolist()]
    each = getattr(config, "mm_tokens_per_image", (vision.image_size // vision.patch_size) ** 2)
    return [each] * len(found["pixel_values"])


def mark(config: Any) -> int:
    """The image placeholder token."""
    return config.image_token_id if hasattr(config, "image_token_id") else config.image_token_index


INPUTS = {"text": of_text, "speech": of_speech, "pictures": of_pictures}
PLACES = ("image_grid_thw", "image_position_ids")  # inputs that say where patches are
# Inputs that say which tokens are a picture's.
KINDS = {
    "gemma3": ("token_type_ids",),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma4"), ("mm_token_type_ids",)),
}


def squares(config: Any) -> dict[str, int]:
    """Height and width of the vision config's square images, as an image processor's size."""
    return dict.fromkeys(("height", "width"), config.vision_config.image_size)


def of_any_size(config: Any) -> Any:
    """The image processor of the Qwen-VL models, which keeps the aspect ratio."""
    vision = config.vision_config
    return Qwen2VLImageProcessorPil(
        patch_size=vision.patch_size, merge_size=vision.spatial_merge_size,
        temporal_patch_size=vision.temporal_patch_size,
        size={"shortest_edge": 64, "longest_edge": 1024},
    )  # fmt: skip


PROCESSORS: dict[str, Callable[[Any], Any]] = {
    "llava": lambda config: LlavaImageProcessorPil(
        size={"shortest_edge": config.vision_config.image_size}, crop_size=squares(config)
    ),
    "gemma3": lambda config: Gemma3ImageProcessorPil(size=squares(config)),
    "gemma4": lambda config: Gemma4ImageProcessorPil(
        patch_size=config.vision_config.patch_size,
        pooling_kernel_size=config.vision_config.pooling_kernel_size,
        max_soft_tokens=70,
    ),
    "internvl": lambda config: GotOcr2ImageProcessorPil(
        size=dict(zip(("height", "width"), config.vision_config.image_size, strict=True)),
        crop_to_patches=True,
        max_patches=6,
    ),
    "qwen2_vl": of_any_size,
    "qwen2_5_vl": of_any_size,
    "qwen3_vl": of_any_size,
}


def pool(job: Mapping[str, Any]) -> dict[str, Any]:
    """Write hidden states or class scores, [tokens or nothing, width] per sequence, to a file."""
    model_class = getattr(transformers, job["architecture"])
    model = model_class.from_pretrained(job["folder"], dtype=getattr(torch, job["dtype"])).eval()
    with torch.no_grad():
        answers = [model(torch.tensor([tokens])) for tokens in job["tokens"]]
    found = [one.logits if "logits" in one else one.last_hidden_state for one in answers]
    np.savez(job["out"], *(one[0].double().numpy() for one in found))
    return {}


def classes(job: Mapping[str, Any]) -> list[str]:
    """The classes of one of transformers' mappings, each once."""
    return list(dict.fromkeys(getattr(modeling_auto, job["mapping"]).values()))


OPERATIONS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "classes": classes,
    "config": written_config,
    "write": write,
    "score": score,
    "score_routed": score_routed,
    "score_conditional": score_conditional,
    "pool": pool,
}


def main() -> None:
    """Answer requests until stdin closes."""
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
