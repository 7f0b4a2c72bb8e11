"""Random-weight models of published shapes: speed depends on shapes, not on weight values.

python -m jengine.bench.models NAME FOLDER: writes config.json, model.safetensors and a tokenizer of
made-up words, which transformers and vLLM read too. The same name gives the same everywhere.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jengine.bench.made_up_tokenizer import write_tokenizer
from jengine.models import registry
from jengine.weights.dummy import dummy_model
from jengine.weights.safetensors_io import save_pretrained

_COMMON: Mapping[str, Any] = {
    "vocab_size": 49_152,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
_LLAMA_135M: Mapping[str, Any] = {
    **_COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
SHAPES: dict[str, Mapping[str, Any]] = {
    "llama-135m": _LLAMA_135M,
    "llama-135m-long": {**_LLAMA_135M, "max_position_embeddings": 16_384},
    "llama-1b": {  # Llama 3.2 1B
        **_COMMON,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
    },
    "qwen3-moe-150m": {
        **_COMMON,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 10,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 256,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "gemma2-150m": {
        **_COMMON,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "hidden_size": 640,
        "intermediate_size": 2560,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
    },
    # Granite 4.0 H 350M with a smaller vocabulary: 28 layers with a state and 4 with attention.
    "granite4-h-300m-long": {
        **_COMMON,
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "max_position_embeddings": 16_384,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "shared_intermediate_size": 2048,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "num_hidden_layers": 32,
        "layer_types": ["attention" if n in (10, 13, 17, 27) else "mamba" for n in range(32)],
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "mamba_n_heads": 48,
        "mamba_d_head": 32,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "mamba_expand": 2,
        "position_embedding_type": "nope",
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.015625,
        "residual_multiplier": 0.246,
        "logits_scaling": 3.0,
    },
    # Qwen2-VL in small, for bench.images.
    "qwen2-vl-70m": {
        **_COMMON,
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "torch_dtype": "float32",
        "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        "image_token_id": 49_001,
        "video_token_id": 49_002,
        "vision_start_token_id": 49_003,
        "vision_end_token_id": 49_004,
        "vision_config": {
            "depth": 8,
            "embed_dim": 384,
            "hidden_size": 512,
            "num_heads": 6,
            "patch_size": 14,
        },
    },
    # The shape of all-MiniLM-L6-v2, for bench.embeddings.
    "minilm-22m": {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": 30522,
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "max_position_embeddings": 512,
        "hidden_act": "gelu",
        "torch_dtype": "float32",
    },
}


def write(name: str, folder: Path) -> None:
    """Write the model with this name."""
    config = registry.model_config(SHAPES[name])
    save_pretrained(dummy_model(config), folder)
    write_tokenizer(folder, config.vocab_size)
    if config.vision is not None:
        settings = {
            "image_processor_type": "Qwen2VLImageProcessor", "patch_size": config.vision.patch_size,
            "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
        }  # fmt: skip
        text = json.dumps(settings, indent=1) + "\n"
        (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jengine.bench.models")
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args(words)
    write(arguments.name, arguments.folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
