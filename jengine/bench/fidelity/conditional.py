"""Random configs of encoder-decoder, speech and vision-language models."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
AUDIO = 94
AROUND = (BEGIN, IMAGE, END)
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
GEMMA4: Choices = {
    **TEXT, "text_config.head_dim": HEAD_SIZES[:6], "text_config.global_head_dim": (8, 16, 40),
    "text_config.num_hidden_layers": (4,), "text_config.sliding_window": (5, 16, 40),
    "text_config.layer_types": (["sliding_attention", "full_attention"] * 2,),
    "text_config.use_bidirectional_attention": (None, "vision"),
    "text_config.rms_norm_eps": (1e-2, 1e-3), "text_config.attention_k_eq_v": FLAGS,
    "text_config.hidden_size_per_layer_input": (0, 12), "text_config.pad_token_id": (0, 3),
    "text_config.vocab_size_per_layer_input": (131,),
    "text_config.final_logit_softcapping": (None, 30.0),
    "vision_config.hidden_size": (24, 48, 72), "vision_config.num_attention_heads": (1, 2, 3, 4),
    "vision_config.head_dim": (4, 8, 12, 20), "vision_config.intermediate_size": WIDTHS,
    "vision_config.num_hidden_layers": LAYERS, "vision_config.rms_norm_eps": EPSILONS,
    "vision_config.hidden_activation": VISION_ACTIVATIONS, "vision_config.patch_size": (2, 4, 6),
    "vision_config.pooling_kernel_size": (2, 3), "vision_config.standardize": FLAGS,
    "vision_config.position_embedding_size": (210, 300),
    "vision_config.use_clipped_linears": FLAGS,
    "vision_config.rope_parameters": [
        {"rope_type": "axial", "rope_theta": theta} for theta in (100.0, 500.0)
    ],
    "vision_soft_tokens_per_image": (70, 280), "image_token_id": (IMAGE,),
    "boi_token_id": (BEGIN,), "eoi_token_id": (END,), "video_token_id": (VIDEO,),
    "audio_token_id": (AUDIO,),
}  # fmt: skip
INTERNVL: Choices = {
    **TEXT, **TOWER, "text_config.model_type": ("llama", "mistral", "qwen2"),
    "vision_config.image_size": (16, 32), "vision_config.patch_size": (4, 8),
    "vision_config.attention_bias": FLAGS, "vision_config.use_mean_pooling": FLAGS,
    "projector_hidden_act": VISION_ACTIVATIONS, "image_token_id": (IMAGE,),
    "tie_word_embeddings": FLAGS,
}  # fmt: skip
# Qwen2-VL and its successors. Each number of heads divides each width, into a multiple of four.
QWEN_VL: Choices = {
    **TEXT, "vision_config.depth": LAYERS, "vision_config.num_heads": (1, 2, 4),
    "vision_config.hidden_act": VISION_ACTIVATIONS, "vision_config.patch_size": (4, 6, 7),
    "vision_config.temporal_patch_size": (1, 2, 3), "vision_config.spatial_merge_size": (1, 2, 3),
    "vision_config.rope_parameters": (None, {"rope_type": "axial", "rope_theta": 500.0}),
    "image_token_id": (IMAGE,), "vision_start_token_id": (BEGIN,), "vision_end_token_id": (END,),
    "video_token_id": (VIDEO,), "tie_word_embeddings": FLAGS,
}  # fmt: skip
QWEN2_VL: Choices = {
    **QWEN_VL, "text_config.head_dim": (None,), "vision_config.embed_dim": (32, 48, 96),
    "vision_config.mlp_ratio": (1, 2, 3),
}  # fmt: skip
LATER_QWEN_VL: Choices = {
    **QWEN_VL, "vision_config.hidden_size": (32, 48, 96), "vision_config.intermediate_size": WIDTHS,
}  # fmt: skip
QWEN2_5_VL: Choices = {
    **LATER_QWEN_VL, "text_config.use_sliding_window": FLAGS, "text_config.sliding_window": (5, 16),
    "text_config.max_window_layers": (0, 1, 2),
    # At least the pixels of a token, of which a side has up to three patches of up to seven.
    "vision_config.window_size": (21, 30, 50),
}  # fmt: skip
QWEN3_VL: Choices = {
    **LATER_QWEN_VL, "text_config.head_dim": HEAD_SIZES[:6], "text_config.attention_bias": FLAGS,
    "vision_config.num_position_embeddings": (1, 16, 36, 49),
}  # fmt: skip


def with_sections(
    chosen: random.Random, settings: Settings, *, width: str = "hidden_size", layers: str = "",
    **rope: Any,
) -> Settings:  # fmt: skip
    """Draw the mrope sections (frame, row, column) and, if `layers` names a key of the tower's
    config, a list of tower layers for it. `width`: the tower's key for the decoder's width."""
    text, vision = settings["text_config"], settings["vision_config"]
    pairs = (text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]) // 2
    first, second = sorted(chosen.choices(range(pairs + 1), k=2))
    rope |= {"mrope_section": [first, second - first, pairs - second]}
    tower = {width: text["hidden_size"]}
    if layers:
        count = chosen.randint(0, min(vision["depth"], text["num_hidden_layers"]))
        tower[layers] = sorted(chosen.sample(range(vision["depth"]), count))
    return {
        "text_config": {
            **text, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **rope}
        },
        "vision_config": {**vision, **tower},
    }  # fmt: skip


def with_shared_layers(chosen: random.Random, settings: Settings) -> Settings:
    """Draw which layers read the keys and values of others: none where images are seen ahead, nor,
    as transformers cannot, without inputs of each layer."""
    text, vision = settings["text_config"], settings["vision_config"]
    ahead = text["use_bidirectional_attention"] is not None
    shared = 0 if ahead or not text["hidden_size_per_layer_input"] else chosen.choice((0, 2))
    return {
        "text_config": {
            **text, "num_kv_shared_layers": shared,
            "use_double_wide_mlp": shared > 0 and chosen.choice(FLAGS),
        },
        "vision_config": {**vision, "num_key_value_heads": vision["num_attention_heads"]},
    }  # fmt: skip


class Conditional(NamedTuple):
    """A family's model class, its variable config keys, and its input modality."""

    architecture: str
    choices: Choices
    reads: str = "text"
    # What stands for a picture in a prompt of transformers, and in ours.
    marks: tuple[int, ...] = ()
    own_marks: tuple[int, ...] = ()
    more: Callable[[random.Random, Settings], Settings] = lambda chosen, settings: {}
    unscaled: bool = False  # whether nothing but weights scales its scores
    chunk: int = 64  # tokens of a prompt in a step, at most


CONDITIONAL: Mapping[str, Conditional] = {
    "bart": Conditional(
        "BartForConditionalGeneration",
        {**SHARED, **ALIKE, "max_position_embeddings": POSITIONS, "scale_embedding": FLAGS},
    ),
    "t5": Conditional(
        "T5ForConditionalGeneration", {**T5, "tie_word_embeddings": FLAGS}, unscaled=True
    ),
    "mt5": Conditional(
        "MT5ForConditionalGeneration", {**T5, "tie_word_embeddings": (False,)}, unscaled=True
    ),
    "whisper": Conditional(
        "WhisperForConditionalGeneration",
        {
            **SHARED, **ALIKE, "num_mel_bins": (16, 25, 80), "max_source_positions": (SECOND,),
            "max_target_positions": POSITIONS, "tie_word_embeddings": FLAGS,
        },
        "speech",
    ),
    "llava": Conditional(
        "LlavaForConditionalGeneration", LLAVA, "pictures", (IMAGE,), (IMAGE,)
    ),
    "gemma3_vision": Conditional(
        "Gemma3ForConditionalGeneration", GEMMA3, "pictures", AROUND, (BEGIN,)
    ),
    "gemma4_vision": Conditional(
        "Gemma4ForConditionalGeneration", GEMMA4, "pictures", AROUND, (IMAGE,), with_shared_layers,
        unscaled=True, chunk=96,
    ),
    "qwen2_vl": Conditional(
        "Qwen2VLForConditionalGeneration", QWEN2_VL, "pictures", AROUND, AROUND, with_sections
    ),
    "qwen2_5_vl": Conditional(
        "Qwen2_5_VLForConditionalGeneration", QWEN2_5_VL, "pictures", AROUND, AROUND,
        partial(with_sections, width="out_hidden_size", layers="fullatt_block_indexes"),
    ),
    "qwen3_vl": Conditional(
        "Qwen3VLForConditionalGeneration", QWEN3_VL, "pictures", AROUND, AROUND,
        partial(
            with_sections, width="out_hidden_size", layers="deepstack_visual_indexes",
            mrope_interleaved=True,
        ),
    ),
    "internvl": Conditional(
        "InternVLForConditionalGeneration", INTERNVL, "pictures", (IMAGE,), (IMAGE,)
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
