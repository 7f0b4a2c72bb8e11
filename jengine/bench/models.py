"""Models of real shapes with random weights: speed depends on shapes, not on what weights say.

python -m jengine.bench.models NAME FOLDER: writes config.json, model.safetensors and a tokenizer of
made-up words, which transformers and vLLM read too. The same name gives the same everywhere.
"""

from __future__ import annotations

import argparse
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
}


def write(name: str, folder: Path) -> None:
    """Write the model of this name."""
    config = registry.model_config(SHAPES[name])
    save_pretrained(dummy_model(config), folder)
    write_tokenizer(folder, config.vocab_size)


def main(words: Sequence[str] | None = None) -> int:
    """Write one model."""
    parser = argparse.ArgumentParser(prog="python -m jengine.bench.models")
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args(words)
    write(arguments.name, arguments.folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
