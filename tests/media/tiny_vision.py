"""Tiny random vision-language models in Hugging Face format, and what transformers answers.

Written with transformers and torch: tests that use this are skipped without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

IMAGE, VIDEO, BEGIN, END = 90, 91, 92, 93
TEXT: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": BEGIN,
    "vision_end_token_id": END,
}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}


def gemma4_config(*, ahead: bool = False) -> dict[str, Any]:
    """As the small models are, or as the large ones, whose images' tokens attend to each other."""
    own: dict[str, Any] = {"use_bidirectional_attention": "vision", "attention_k_eq_v": True}
    small = {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}
    text = {
        **TEXT, "num_hidden_layers": 4, "head_dim": 8, "global_head_dim": 16, "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "rms_norm_eps": 1e-2,
        "hidden_size_per_layer_input": 0 if ahead else 12, "vocab_size_per_layer_input": 97,
        "pad_token_id": 0, **(own if ahead else small),
    }  # fmt: skip
    return {
        "text_config": text,
        "vision_config": {
            "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "head_dim": 12,
            "num_attention_heads": 2, "num_key_value_heads": 2, "patch_size": 4,
            "pooling_kernel_size": 2, "position_embedding_size": 150, "standardize": ahead,
            "use_clipped_linears": not ahead, "rms_norm_eps": 1e-3,
        },
        "image_token_id": IMAGE, "video_token_id": VIDEO, "audio_token_id": 94,
        "boi_token_id": BEGIN, "eoi_token_id": END,
    }  # fmt: skip


CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_vl": (
        "Qwen2VL",
        {
            "text_config": {**TEXT, "rope_parameters": SECTIONS},
            "vision_config": {
                "depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 4,
                "mlp_ratio": 2, "initializer_range": 0.2,
            },
            **TOKENS,
        },
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        {
            "text_config": {**TEXT, "rope_parameters": SECTIONS},
            "vision_config": {
                "depth": 3, "hidden_size": 32, "out_hidden_size": 32, "num_heads": 2,
                "patch_size": 4, "intermediate_size": 40, "window_size": 16,
                "fullatt_block_indexes": [1], "initializer_range": 0.2,
            },
            **TOKENS,
        },
    ),
    "qwen3_vl": (
        "Qwen3VL",
        {
            "text_config": {
                **TEXT, "head_dim": 16,
                "rope_parameters": {
                    **SECTIONS, "mrope_section": [4, 2, 2], "mrope_interleaved": True,
                },
            },
            "vision_config": {
                "depth": 3, "hidden_size": 32, "out_hidden_size": 32, "num_heads": 2,
                "patch_size": 4, "intermediate_size": 40, "num_position_embeddings": 36,
                "deepstack_visual_indexes": [0, 1], "initializer_range": 0.2,
            },
            **TOKENS,
        },
    ),
    "llava": (
        "Llava",
        {
            "text_config": {**TEXT, "model_type": "llama"},
            "vision_config": {
                "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 40,
                "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 16,
                "patch_size": 4, "projection_dim": 16, "initializer_range": 0.2,
            },
            "image_token_index": IMAGE,
        },
    ),
    "internvl": (
        "InternVL",
        {
            "text_config": {**TEXT, "model_type": "qwen2"},
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
                "num_attention_heads": 2, "image_size": [16, 16], "patch_size": [4, 4],
                "initializer_range": 0.2,
            },
            "image_token_id": IMAGE, "image_seq_length": 4, "downsample_ratio": 0.5,
            "tie_word_embeddings": False,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "text_config": {
                **TEXT, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8,
                "sliding_window_pattern": 2,
            },
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
                "num_attention_heads": 2, "image_size": 16, "patch_size": 2,
            },
            "image_token_index": IMAGE, "boi_token_index": BEGIN, "eoi_token_index": END,
            "mm_tokens_per_image": 16, "initializer_range": 0.3,
        },
    ),
    "gemma4": ("Gemma4", gemma4_config()),
    "gemma4_ahead": ("Gemma4", gemma4_config(ahead=True)),
}  # fmt: skip
SMALL_PICTURES = {"shortest_edge": 64, "longest_edge": 4096}


def write_vision(folder: Path, family: str, **settings: Any) -> Path:
    """Write a model with its image processor; `settings` are those of the processor."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    name, config = CONFIGS[family]
    torch.manual_seed(0)
    own = getattr(transformers, f"{name}Config")(**config)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(own).eval().float()
    for parameter in model.parameters():
        # Biases, class vectors and what projects the images of Gemma begin as zeros.
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    if name == "Gemma4":
        spread_gemma4(model)
    model.save_pretrained(folder)
    processor_of(family, **settings).save_pretrained(folder)
    return folder


def spread_gemma4(model: Any) -> None:
    """Spread what Gemma 4 begins as constants: positions, standardization, and bounds, which clamp
    some of what a matmul takes and makes."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "position_embedding_table")):
                parameter.add_(0.2 * torch.randn_like(parameter))
            if name.endswith("q_norm.weight"):  # nothing else scales its scores
                parameter.mul_(parameter.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith(("std_bias", "std_scale", "layer_scalar")):
                buffer.add_(0.2 * torch.randn_like(buffer))
            if name.endswith(("put_min", "put_max")):
                buffer.copy_(torch.rand(()) + 0.7)
                buffer.mul_(-1 if name.endswith("min") else 1)


def processor_of(family: str, **settings: Any) -> Any:
    """The image processor of transformers that needs no torchvision."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    if family == "gemma3":
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

        return Gemma3ImageProcessorPil(size={"height": 16, "width": 16})
    if family.startswith("gemma4"):
        from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

        return Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70)
    if family == "internvl":
        own = {"size": {"height": 16, "width": 16}, "crop_to_patches": True, "max_patches": 4}
        return GotOcr2ImageProcessorPil(**own)
    if family == "llava":
        square = {"height": 16, "width": 16}
        return LlavaImageProcessorPil(**{"size": {"shortest_edge": 16}, "crop_size": square})
    usual = {"patch_size": 4, "size": SMALL_PICTURES}
    return Qwen2VLImageProcessorPil(**{**usual, **settings})


AROUND = {"gemma3": (IMAGE, END), "gemma4": (BEGIN, END), "gemma4_ahead": (BEGIN, END)}


def prompt_of(family: str, ids: list[int]) -> list[int]:
    """The prompt as a model of this family is asked: Gemma's images stand for what is around."""
    return [one for one in ids if one not in AROUND.get(family, ())]


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """A picture of noise."""
    rng = np.random.default_rng((seed, height, width))
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def model_of(folder: Path, family: str) -> Any:
    """The model of transformers."""
    import transformers

    name = f"{CONFIGS[family][0]}ForConditionalGeneration"
    kind = getattr(transformers, name)
    return kind.from_pretrained(folder, attn_implementation="eager", dtype="float32").eval()


def inputs_of(processor: Any, prompt: list[int], pictures: list[Any]) -> dict[str, Any]:
    """A prompt with its pictures as a model of transformers takes them."""
    import torch

    if not pictures:
        return {"input_ids": torch.tensor([prompt])}
    found = processor(pictures, return_tensors="np")
    if "num_soft_tokens_per_image" in found:
        counts = iter(found["num_soft_tokens_per_image"])
        ids = [one for token in prompt for one in [token] * (next(counts) if token == IMAGE else 1)]
        return {
            "input_ids": torch.tensor([ids]),
            "pixel_values": torch.tensor(found["pixel_values"]).float(),
            "image_position_ids": torch.tensor(found["image_position_ids"]),
            "mm_token_type_ids": torch.tensor([[int(token == IMAGE) for token in ids]]),
        }
    if "image_grid_thw" not in found:
        tiles = iter(np.asarray(found["num_patches"]) * 4 if "num_patches" in found else [16] * 9)
        ids = [one for token in prompt for one in [token] * (next(tiles) if token == IMAGE else 1)]
        pixels = torch.tensor(np.asarray(found["pixel_values"]))
        inputs = {"input_ids": torch.tensor([ids]), "pixel_values": pixels}
        if "num_crops" in found:
            inputs["token_type_ids"] = (inputs["input_ids"] == IMAGE).long()
        return inputs
    grids = iter(found["image_grid_thw"])
    ids = list[int]()
    for token in prompt:
        ids += [token] * (int(next(grids).prod()) // 4) if token == IMAGE else [token]
    return {
        "input_ids": torch.tensor([ids]),
        "pixel_values": torch.tensor(found["pixel_values"]),
        "image_grid_thw": torch.tensor(found["image_grid_thw"]),
        "mm_token_type_ids": torch.tensor([[int(token == IMAGE) for token in ids]]),
    }


def greedy(model: Any, inputs: dict[str, Any], count: int) -> list[int]:
    """The first tokens that transformers answers with."""
    import torch

    ids = inputs["input_ids"]
    with torch.no_grad():
        tokens = model.generate(
            **inputs, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return tokens[0, ids.shape[1] :].tolist()
