"""Properties of an architecture that neither its tensors nor its config.json show.

Each row is proven against transformers by `python -m jengine.bench.coverage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from jengine.config import Activation, NormKind

# Multiplier keys, read only if the architecture has them.
GRANITE = (
    "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
)  # fmt: skip


@dataclass(frozen=True)
class Meaning:
    norm: NormKind | None = None  # None: layer norms if there are biases, else RMS norms
    norm_eps: float | None = None  # default if config.json has none
    # Names of a layer's norms, if these do not imply their places (`norm_places`).
    norms: tuple[str, ...] | None = None
    has_norms_of_sums: bool = False  # post-norm: norms take the sum of a block's input and output
    has_final_norm: bool = True
    embed_norm: bool = False
    qk_norm: Literal["unit", "behind_rotation"] | None = None  # None: inferred from tensors
    rotates_neighbours: bool = False
    rotates_backwards: bool = False
    rotates: Literal["all", "windows"] = "all"  # layers with RoPE
    partial_rotary: float = 1.0  # default if config.json has none
    # Order in a fused QKV tensor: all q, k, v; by KV head; or by block of heads (q, v, k).
    qkv_order: Literal["parts", "heads", "blocks"] | None = None
    stored_in_out: bool = False  # weights are stored as [inputs, outputs]
    scores: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax"  # router scores
    normalize: bool | None = None  # normalise top-k weights; None: `norm_topk_prob`
    exact_router: bool = False
    chooses_by_logits: bool = False  # the selection bias is added to logits, not to scores
    scales_embeddings: bool = False  # by sqrt(hidden_size)
    score_scale: float | None = None  # attention scale; None: head_dim ** -0.5
    divides_logits: bool = True  # `logits_scaling` divides logits rather than multiplies them
    position_offset: int = 0
    activation: Activation | None = None  # overrides config.json's
    unused: Mapping[str, str] = field(default_factory=dict)  # unused modules -> why
    head_activation: Activation | None = None  # of the head's transform; None: as in layers
    factors: tuple[str, ...] = ()
    # Key -> the usual key.
    keys: Mapping[str, str] = field(default_factory=dict)
    # Keys with their only supported value: `fixed` may be absent, `stated` may not.
    fixed: Mapping[str, object] = field(default_factory=dict)
    stated: Mapping[str, object] = field(default_factory=dict)
    without_meaning: tuple[str, ...] = ()


PLAIN_MEANING = Meaning()
FOR_ENCODERS = "only an encoder's output would reach it"
BART = Meaning(
    norms=("self_attn_layer_norm", "final_layer_norm"), has_norms_of_sums=True, norm_eps=1e-5,
    has_final_norm=False, embed_norm=True, position_offset=2,
    keys={"d_model": "hidden_size", "decoder_layers": "num_hidden_layers",
          "decoder_attention_heads": "num_attention_heads",
          "decoder_ffn_dim": "intermediate_size"},
    factors=("scale_embedding",),
    unused=dict.fromkeys(("encoder_attn", "encoder_attn_layer_norm"), FOR_ENCODERS),
    without_meaning=(
        "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "encoder_layerdrop",
        "decoder_layerdrop", "decoder_start_token_id", "forced_eos_token_id", "init_std",
        "num_hidden_layers",
    ),
)  # fmt: skip
OF_AUDIO = (
    "begin_suppress_tokens", "classifier_proj_size", "mask_feature_length", "mask_time_length",
    "mask_time_min_masks", "mask_time_prob", "max_source_positions", "median_filter_width",
    "num_mel_bins",
)  # fmt: skip
# Pre-norms, and a final norm.
MBART = replace(BART, has_norms_of_sums=False, has_final_norm=True)
# BERT-style models that `is_decoder` makes causal.
BERT = Meaning(
    norms=("attention.output.LayerNorm", "output.LayerNorm"), has_norms_of_sums=True,
    has_final_norm=False, embed_norm=True, stated={"is_decoder": True},
    without_meaning=("type_vocab_size",),
)  # fmt: skip
ROBERTA = replace(BERT, position_offset=2, head_activation="gelu", fixed={"pad_token_id": 1})
# Pre-norms.
PRE_NORMED = {"has_norms_of_sums": False, "has_final_norm": True}
DEEPSEEK_EXPERTS = Meaning(scores="sigmoid", exact_router=True)
GPT_KEYS = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers"}
MEANINGS: Mapping[str, Meaning] = {
    "AfmoeForCausalLM": Meaning(
        scores="sigmoid", exact_router=True, rotates="windows",
        factors=("scale_embedding",),
        keys={"route_scale": "routed_scaling_factor", "mup_enabled": "scale_embedding"},
        fixed={"n_group": 1, "topk_group": 1, "num_expert_groups": 1,
               "num_limited_groups": 1},
        without_meaning=("global_attn_every_n_layers", "load_balance_coeff", "route_norm",
                         "score_func", "use_grouped_mm"),
    ),
    # Its experts take SiLU whatever the key says.
    "AriaTextForCausalLM": Meaning(fixed={"hidden_act": "silu"}),
    "BartForCausalLM": BART,
    "BertGenerationDecoder": BERT,
    "BertLMHeadModel": BERT,
    "BigBirdForCausalLM": replace(
        BERT, stated={"is_decoder": True, "attention_type": "original_full"},
        unused={"pooler": "the decoder does not pool"},
        keys={"rescale_embeddings": "scale_embedding"}, factors=("scale_embedding",),
        without_meaning=("block_size", "num_random_blocks", "type_vocab_size"),
    ),
    "BigBirdPegasusForCausalLM": replace(
        MBART, embed_norm=False, position_offset=0,
        without_meaning=(*BART.without_meaning, "attention_type", "block_size",
                         "num_random_blocks", "use_bias"),
    ),
    "BlenderbotForCausalLM": replace(
        MBART, embed_norm=False, position_offset=0,
        without_meaning=(*BART.without_meaning, "encoder_no_repeat_ngram_size"),
    ),
    "BioGptForCausalLM": Meaning(
        position_offset=2, factors=("scale_embedding",), norm_eps=1e-5,
        without_meaning=("layer_norm_eps",),
    ),
    "CamembertForCausalLM": ROBERTA,
    "CodeGenForCausalLM": Meaning(
        qkv_order="blocks", rotates_neighbours=True,
    ),
    "Cohere2MoeForCausalLM": Meaning(
        norm="layer_no_bias", rotates="windows", rotates_neighbours=True, normalize=True,
        factors=("logit_scale",),
        fixed={"expert_selection_fn": "softmax", "num_shared_experts": 0, "rms_norm_eps": None},
        without_meaning=("norm_topk_prob", "shared_expert_combination_strategy",
                         "sliding_window_pattern", "prefix_dense_intermediate_size",
                         "prefix_dense_sliding_window_pattern"),
    ),
    "CwmForCausalLM": Meaning(),
    "Data2VecTextForCausalLM": ROBERTA,
    "Dots1ForCausalLM": DEEPSEEK_EXPERTS,
    "ElectraForCausalLM": replace(
        BERT, head_activation="gelu",
        without_meaning=("embedding_size", "type_vocab_size", "summary_last_dropout"),
    ),
    "Emu3ForCausalLM": Meaning(),
    "Ernie4_5_MoeForCausalLM": Meaning(
        rotates_neighbours=True, exact_router=True,
        without_meaning=("moe_norm_min", "moe_layer_end_index", "moe_layer_interval",
                         "moe_layer_start_index"),
    ),
    "ErnieForCausalLM": replace(
        BERT, fixed={"use_task_id": False},
        without_meaning=("task_type_vocab_size", "type_vocab_size"),
    ),
    "ExaoneMoeForCausalLM": Meaning(
        scores="sigmoid", exact_router=True, rotates="windows",
        without_meaning=("sliding_window_pattern",),
    ),
    "FalconForCausalLM": Meaning(
        qkv_order="heads", keys={"num_kv_heads": "num_key_value_heads"},
        fixed={"alibi": False},
        without_meaning=("num_kv_heads", "num_ln_in_parallel_attn", "new_decoder_architecture"),
    ),
    "FlexOlmoForCausalLM": Meaning(),
    "FlintForCausalLM": Meaning(scores="sigmoid", exact_router=True, rotates="windows"),
    "GPTBigCodeForCausalLM": Meaning(
        qkv_order="heads",
        fixed={"add_cross_attention": False, "scale_attn_weights": True},
        without_meaning=("multi_query", "attention_softmax_in_fp32", "num_key_value_heads",
                         "scale_attention_softmax_in_fp32"),
    ),
    "GPTJForCausalLM": Meaning(rotates_neighbours=True),
    "GPTNeoForCausalLM": Meaning(
        score_scale=1.0,
        keys={"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads",
              "window_size": "sliding_window"},
        without_meaning=("attention_types",),
    ),
    "GraniteMoeSWAForCausalLM": Meaning(factors=GRANITE),
    "GraniteSWAForCausalLM": Meaning(factors=GRANITE),
    "HYV3ForCausalLM": Meaning(
        scores="sigmoid", exact_router=True,
        keys={"router_scaling_factor": "routed_scaling_factor"},
        without_meaning=("enable_moe_fp32_combine", "head_dim"),
    ),
    "HeliumForCausalLM": Meaning(rotates_neighbours=True),
    "HunYuanMoEV1ForCausalLM": Meaning(
        qk_norm="behind_rotation", without_meaning=("eod_token_id", "im_start_id"),
    ),
    "HyperCLOVAXForCausalLM": Meaning(
        factors=GRANITE, divides_logits=False, without_meaning=("use_post_norm",),
    ),
    "Jais2ForCausalLM": Meaning(),
    "Kolibri1ForCausalLM": Meaning(
        scores="sigmoid", exact_router=True, chooses_by_logits=True,
        rotates="windows",
    ),
    "MBartForCausalLM": MBART,
    "MarianForCausalLM": replace(
        BART, embed_norm=False, position_offset=0,
        without_meaning=(*BART.without_meaning, "decoder_vocab_size",
                         "share_encoder_decoder_embeddings"),
    ),
    "MegatronBertForCausalLM": replace(
        BERT, norms=("attention.ln", "ln"), embed_norm=False, **PRE_NORMED
    ),
    "MellumForCausalLM": Meaning(),
    "Ministral3ForCausalLM": Meaning(
        without_meaning=("rope_parameters.max_position_embeddings",),
    ),
    "MinistralForCausalLM": Meaning(),
    "MvpForCausalLM": replace(
        BART, fixed={"use_prompt": False},
        without_meaning=(*BART.without_meaning, "prompt_length", "prompt_mid_dim"),
    ),
    "NanoChatForCausalLM": Meaning(
        norm="rms_bare", norms=(), embed_norm=True, has_final_norm=False, qk_norm="unit",
        rotates_backwards=True, factors=("final_logit_softcapping",),
    ),
    "OlmoForCausalLM": Meaning(
        norm="layer_bare", norms=(), has_final_norm=False, norm_eps=1e-5,
        factors=("clip_qkv",),
    ),
    "OpenAIGPTLMHeadModel": Meaning(
        norms=("ln_1", "ln_2"), has_norms_of_sums=True, has_final_norm=False, qkv_order="parts",
        stored_in_out=True, activation="gelu_tanh", fixed={"afn": "gelu"},
    ),
    "PhimoeForCausalLM": Meaning(
        scores="sparse_mixer", fixed={"num_experts_per_tok": 2},  # as the mixer chooses
        without_meaning=("input_jitter_noise", "lm_head_bias", "original_max_position_embeddings"),
    ),
    "PLBartForCausalLM": BART,
    "PegasusForCausalLM": replace(MBART, embed_norm=False, position_offset=0),
    "RobertaForCausalLM": ROBERTA,
    "RobertaPreLayerNormForCausalLM": replace(
        ROBERTA, norms=("attention.LayerNorm", "intermediate.LayerNorm"), **PRE_NORMED
    ),
    "SolarOpenForCausalLM": DEEPSEEK_EXPERTS,
    "TrOCRForCausalLM": replace(
        BART,
        fixed={"use_learned_position_embeddings": True, "layernorm_embedding": True},
        without_meaning=(*BART.without_meaning, "cross_attention_hidden_size",
                         "layernorm_embedding", "use_learned_position_embeddings"),
    ),
    "WhisperForCausalLM": replace(
        MBART, embed_norm=False, position_offset=0, factors=(),
        keys={**BART.keys, "max_target_positions": "max_position_embeddings"},
        without_meaning=(*BART.without_meaning, *OF_AUDIO, "scale_embedding"),
    ),
    "XLMRobertaForCausalLM": ROBERTA,
    "XLMRobertaXLForCausalLM": replace(
        ROBERTA, norms=("attention.self_attn_layer_norm", "LayerNorm"), embed_norm=False,
        **PRE_NORMED,
    ),
    "VaultGemmaForCausalLM": Meaning(
        norm="rms_one_plus", scales_embeddings=True,
        factors=("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
    ),
}  # fmt: skip
