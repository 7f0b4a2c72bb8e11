"""Gemma 4 12B, text only: Gemma 4's text model without per-layer inputs. Its image and audio
inputs, which have no towers, are not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ModelConfig
from jengine.models.families import gemma4
from jengine.models.reading.hf_vision import text_part

ARCHITECTURES = ("Gemma4UnifiedForCausalLM",)
MODELS = "Gemma 4 12B (text)"
NAMES = gemma4.NAMES
# Defaults that differ from Gemma 4's.
USUAL = {"max_position_embeddings": 262144, "sliding_window": 1024}
FIXED = {"hidden_size_per_layer_input": 0, "enable_moe_block": False}


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    config = gemma4.read_config({**USUAL, **text_part(hf), **FIXED})
    return replace(config, architecture=ARCHITECTURES[0])


def write_config(config: ModelConfig) -> dict[str, object]:
    return {**gemma4.write_config(config), "model_type": "gemma4_unified_text"}
