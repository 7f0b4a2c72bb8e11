"""Random configs of models conditioned on an encoder's input: text, speech or an image."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jengine.bench.fidelity.variations import EPSILONS, FLAGS, HEAD_SIZES, WIDTHS, Settings

Choices = Mapping[str, Sequence[Any]]

LAYERS = (1, 2, 3)
POSITIONS = (64, 130)  # at least those of a prompt and its answer
TOKENS = {
    "bos_token_id": (0,), "pad_token_id": (1,), "eos_token_id": (2,),
    "decoder_start_token_id": (2, 4),
}  # fmt: skip
SHARED: Choices = {"vocab_size": (89, 97, 131), **TOKENS}
# Of BART and Whisper: numbers of heads divide all widths of the hidden states.
ALIKE: Choices = {
    "d_model": (24, 48, 72, 120), "encoder_layers": LAYERS, "decoder_layers": LAYERS,
    "encoder_attention_heads": (1, 2, 3, 4), "decoder_attention_heads": (1, 2, 3, 6),
    "encoder_ffn_dim": WIDTHS, "decoder_ffn_dim": WIDTHS,
    "activation_function": ("gelu", "relu", "silu"),
}  # fmt: skip
SECOND = 50  # positions of the encoder's states for a second of speech
T5: Choices = {
    **SHARED, "d_model": (20, 32, 33, 60), "d_kv": HEAD_SIZES[:6], "d_ff": WIDTHS,
    "num_layers": LAYERS, "num_decoder_layers": (None, 1, 3), "num_heads": (1, 2, 3, 4, 5),
    "relative_attention_num_buckets": (4, 8, 32), "relative_attention_max_distance": (18, 40, 128),
    "layer_norm_epsilon": EPSILONS, "n_positions": POSITIONS, "pad_token_id": (0,),
    "feed_forward_proj": ("relu", "gated-gelu", "gated-silu", "gated-relu"),
}  # fmt: skip
IMAGE, BEGIN, END, VIDEO = MARKS = 90, 91, 92, 93
VISION_ACTIVATIONS = ("gelu", "quick_gelu", "gelu_pytorch_tanh", "silu")
# Decoders beside a tower. Each number of heads divides each width, into an even number of numbers.
TEXT: Choices = {
    "text_config.vocab_size": (97, 131), "text_config.hidden_size": (24, 48, 72, 120),
    "text_config.num_attention_heads": (2, 4, 6), "text_config.num_key_value_heads": (1, 2),
    "text_config.intermediate_size": WIDTHS, "text_config.num_hidden_layers": LAYERS,
    "text_config.rms_norm_eps": EPSILONS, "text_config.max_position_embeddings": (512,),
    "text_config.bos_token_id": (1,), "text_config.eos_token_id": (2,),
}  # fmt: skip
# CLIP's and SigLIP's towers.
TOWER: Choices = {
    "vision_config.hidden_size": (24, 48, 72), "vision_config.num_attention_heads": (1, 2, 3, 4),
    "vision_config.intermediate_size": WIDTHS, "vision_config.num_hidden_layers": LAYERS,
    "vision_config.hidden_act": VISION_ACTIVATIONS, "vision_config.layer_norm_eps": EPSILONS,
}  # fmt: skip
LLAVA: Choices = {
    **TEXT, **TOWER, "text_config.model_type": ("llama", "mistral", "qwen2"),
    "vision_config.model_type": ("clip_vision_model",), "vision_config.image_size": (16, 24),
    "vision_config.patch_size": (4, 8), "vision_config.projection_dim": (16,),
    "projector_hidden_act": VISION_ACTIVATIONS, "multimodal_projector_bias": FLAGS,
    "vision_feature_layer": (-2, -1, 1), "image_token_index": (IMAGE,),
    "tie_word_embeddings": FLAGS,
}  # fmt: skip
GEMMA3: Choices = {
    **TEXT, **TOWER, "text_config.head_dim": HEAD_SIZES[:6], "text_config.sliding_window": (5, 16),
    "text_config.query_pre_attn_scalar": (8, 20), "vision_config.image_size": (16,),
    "vision_config.patch_size": (2, 4), "mm_tokens_per_image": (4, 16),
    "image_token_index": (IMAGE,), "boi_token_index": (BEGIN,), "eoi_token_index": (END,),
}  # fmt: skip
QWEN2_VL: Choices = {
    **TEXT, "text_config.head_dim": (None,), "vision_config.depth": LAYERS,
    "vision_config.embed_dim": (32, 48, 96), "vision_config.num_heads": (1, 2, 4),
    "vision_config.mlp_ratio": (1, 2, 3), "vision_config.hidden_act": VISION_ACTIVATIONS,
    "vision_config.patch_size": (4,), "vision_config.spatial_merge_size": (1, 2),
    "image_token_id": (IMAGE,), "vision_start_token_id": (BEGIN,), "vision_end_token_id": (END,),
    "video_token_id": (VIDEO,), "tie_word_embeddings": FLAGS,
}  # fmt: skip


def with_sections(chosen: random.Random, settings: Settings) -> Settings:
    """Draw the mrope sections (frame, row, column) and the decoder's width."""
    text = settings["text_config"]
    pairs = text["hidden_size"] // text["num_attention_heads"] // 2
    first, second = sorted(chosen.choices(range(pairs + 1), k=2))
    sections = [first, second - first, pairs - second]
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}
    return {
        "text_config": {**text, "rope_parameters": rope},
        "vision_config": {**settings["vision_config"], "hidden_size": text["hidden_size"]},
    }


class Conditional(NamedTuple):
    """A family's model class, its variable config keys, and its input modality."""

    architecture: str
    choices: Choices
    reads: str = "text"
    # What stands for the picture in a prompt of transformers, and in ours.
    marks: tuple[int, ...] = ()
    own_marks: tuple[int, ...] = ()
    more: Callable[[random.Random, Settings], Settings] = lambda chosen, settings: {}


CONDITIONAL: Mapping[str, Conditional] = {
    "bart": Conditional(
        "BartForConditionalGeneration",
        {**SHARED, **ALIKE, "max_position_embeddings": POSITIONS, "scale_embedding": FLAGS},
    ),
    "t5": Conditional("T5ForConditionalGeneration", {**T5, "tie_word_embeddings": FLAGS}),
    "mt5": Conditional("MT5ForConditionalGeneration", {**T5, "tie_word_embeddings": (False,)}),
    "whisper": Conditional(
        "WhisperForConditionalGeneration",
        {
            **SHARED, **ALIKE, "num_mel_bins": (16, 25, 80), "max_source_positions": (SECOND,),
            "max_target_positions": POSITIONS, "tie_word_embeddings": FLAGS,
        },
        "speech",
    ),
    "llava": Conditional(
        "LlavaForConditionalGeneration", LLAVA, "picture", (IMAGE,), (IMAGE,)
    ),
    "gemma3_vision": Conditional(
        "Gemma3ForConditionalGeneration", GEMMA3, "picture", (BEGIN, IMAGE, END), (BEGIN,)
    ),
    "qwen2_vl": Conditional(
        "Qwen2VLForConditionalGeneration", QWEN2_VL, "picture", (BEGIN, IMAGE, END),
        (BEGIN, IMAGE, END), with_sections,
    ),
}  # fmt: skip


def drawn_conditional(family: str, number: int) -> Settings:
    """The config with this number."""
    chosen, known = random.Random(number), CONDITIONAL[family]  # noqa: S311
    settings: Settings = {}
    for key in sorted(known.choices):
        part, _, name = key.rpartition(".")
        inner = settings.setdefault(part, {}) if part else settings
        inner[name] = chosen.choice(known.choices[key])
    return {**settings, **known.more(chosen, settings)}
