"""GGUF architectures: the family that reads each, and its metadata keys.

Data. Keys omit the architecture's prefix. Tensor names are not listed here: each family's `names`
map them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Keys = Mapping[str, str]
# Common to all architectures: metadata key -> config.json key.
COMMON: Keys = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "rope.freq_base": "rope_theta",
}
# Keys that a file must have if its architecture uses them.
REQUIRED = {
    "context_length", "embedding_length", "attention.head_count", "expert_count",
    "expert_used_count", "expert_feed_forward_length",
}  # fmt: skip
# Keys that are redundant beside tensors and other keys.
HARMLESS = {"vocab_size", "rope.scaling.finetuned", "tensor_data_layout"}
POOLING = "pooling_type"  # read for pooling models
EXPERTS: Keys = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
LOCAL_EXPERTS: Keys = {**EXPERTS, "expert_count": "num_local_experts"}
INNER: Keys = {"expert_feed_forward_length": "moe_intermediate_size"}
SHARED = "expert_shared_feed_forward_length"
ROUTED: Keys = {
    **EXPERTS,
    **INNER,
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace",
}
PATTERN = "attention.sliding_window_pattern"
WINDOW: Keys = {"attention.sliding_window": "sliding_window"}
CAPS: Keys = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
GRANITE: Keys = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}
LLAMA_4: Keys = {
    **LOCAL_EXPERTS, **INNER, "interleave_moe_layer_step": "interleave_moe_layer_step",
}  # fmt: skip
LLAMA_4_SIZES: Keys = {
    "intermediate_size": "intermediate_size_mlp", "moe_intermediate_size": "intermediate_size",
}  # fmt: skip
# Mamba and its like; the sizes derived from ssm.inner_size are in `Architecture.shares`.
MAMBA: Keys = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.time_step_rank": "mamba_n_heads",
    "ssm.group_count": "mamba_n_groups",
}
MAMBA_SHARES: Keys = {"mamba_d_head": "ssm.time_step_rank", "mamba_expand": "embedding_length"}
# Gated delta nets.
DELTA: Keys = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.group_count": "linear_num_key_heads",
    "full_attention_interval": "full_attention_interval",
}
# M-RoPE sections: for text, positions are equal in all sections.
OF_IMAGES = ("rope.dimension_sections",)
# Converters write 2**20 for models without position embeddings, whatever config.json says.
UNBOUNDED = {"max_position_embeddings": 131072}
SOFTMAX, SIGMOID = 1, 2  # expert_gating_func


@dataclass(frozen=True)
class Architecture:
    """One of llama.cpp's architectures, or a variant."""

    hf: str  # architecture class in config.json
    model_type: str
    # Beyond COMMON: metadata key -> config.json key; "a.b" is b in the object a.
    keys: Keys = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)  # constant entries of config.json
    rope: Mapping[str, object] = field(default_factory=dict)  # the same of rope_scaling
    eps: str = "rms_norm_eps"
    partial: bool = False  # partial rotary embedding is allowed
    # Whether converters permuted rows of q and k from half-split to interleaved RoPE.
    turned: bool = False
    gate: int = SOFTMAX
    grouped: str | None = None  # topk_method of group-limited routing
    # query_pre_attn_scalar: head_dim, or hidden_size / heads for models with this many layers.
    mean_heads_at: int | None = None
    renamed: Keys = field(default_factory=dict)  # config.json keys with other names in this family
    # Layer type of layers with 0 KV heads, in hybrids.
    headless: str | None = None
    halves: bool = False  # mixers and MLPs are separate layers
    has_heads: bool = True  # any layer has attention heads
    is_rotated: bool = True
    # config.json key -> metadata key that ssm.inner_size is divided by.
    shares: Keys = field(default_factory=dict)
    # Tensors that may not be absent, though other architectures may omit them.
    needed: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()  # keys without effect in this architecture
    unused: tuple[str, ...] = ()  # tensors of heads that are not read
    sees_ahead: bool = False  # bidirectional attention
    # Gemma 4: layers with and without a window differ in heads and RoPE.
    by_kind: bool = False


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", turned=True),
    "llama with experts": Architecture(
        "MixtralForCausalLM", "mixtral", LOCAL_EXPERTS, turned=True
    ),
    "llama4": Architecture("Llama4ForCausalLM", "llama4_text", LLAMA_4, {"use_qk_norm": True},
                           gate=SIGMOID, renamed=LLAMA_4_SIZES),
    "llama4 of 128 experts": Architecture(
        "Llama4ForCausalLM", "llama4_text", LLAMA_4, {"use_qk_norm": False}, gate=SIGMOID,
        renamed=LLAMA_4_SIZES,
    ),
    "lfm2": Architecture(
        "Lfm2ForCausalLM", "lfm2", {"shortconv.l_cache": "conv_L_cache"},
        {"block_auto_adjust_ff_dim": False}, eps="norm_eps", headless="conv",
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3"),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM", "qwen2_moe",
        {**EXPERTS, **INNER, SHARED: "shared_expert_intermediate_size"},
    ),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM", "qwen3_moe", {**EXPERTS, **INNER}, {"norm_topk_prob": True}
    ),
    "gemma": Architecture("GemmaForCausalLM", "gemma"),
    "gemma2": Architecture("Gemma2ForCausalLM", "gemma2", {**WINDOW, **CAPS}, mean_heads_at=46),
    "gemma3": Architecture(
        "Gemma3ForCausalLM", "gemma3_text",
        {**WINDOW, **CAPS, "rope.freq_base_swa": "rope_local_base_freq"}, mean_heads_at=62,
    ),
    "gemma4": Architecture(
        "Gemma4ForCausalLM", "gemma4_text",
        {
            **WINDOW, **CAPS, "attention.shared_kv_layers": "num_kv_shared_layers",
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        },
        by_kind=True,
    ),
    # Also RoBERTa: files omit the position embeddings before the first used one.
    "bert": Architecture("BertModel", "bert", eps="layer_norm_eps", sees_ahead=True),
    "nomic-bert": Architecture(
        "NomicBertModel", "nomic_bert", eps="layer_norm_eps", sees_ahead=True
    ),
    "modern-bert": Architecture(
        "ModernBertModel", "modernbert",
        {
            "attention.sliding_window": "local_attention",
            PATTERN: "global_attn_every_n_layers", "rope.freq_base": "global_rope_theta",
            "rope.freq_base_swa": "local_rope_theta",
        },
        eps="norm_eps", sees_ahead=True, unused=("cls.weight", "cls.norm.weight"),
    ),
    "phi2": Architecture("PhiForCausalLM", "phi", eps="layer_norm_eps", partial=True),
    "phi3": Architecture("Phi3ForCausalLM", "phi3", WINDOW, partial=True),
    "olmo2": Architecture("Olmo2ForCausalLM", "olmo2"),
    "olmo2 with windows": Architecture("Olmo3ForCausalLM", "olmo3", WINDOW),
    "olmoe": Architecture("OlmoeForCausalLM", "olmoe", EXPERTS),
    "deepseek2": Architecture(
        "DeepseekV2ForCausalLM", "deepseek_v2", ROUTED, {"norm_topk_prob": False},
        grouped="group_limited_greedy",
    ),
    "deepseek2 with sigmoids": Architecture(
        "DeepseekV3ForCausalLM", "deepseek_v3", ROUTED, gate=SIGMOID
    ),
    "glm4": Architecture("Glm4ForCausalLM", "glm4", partial=True),
    "glm4moe": Architecture("Glm4MoeForCausalLM", "glm4_moe", ROUTED, gate=SIGMOID, partial=True),
    "gpt-oss": Architecture(
        "GptOssForCausalLM", "gpt_oss",
        {**LOCAL_EXPERTS, **WINDOW, "expert_feed_forward_length": "intermediate_size"},
        rope={"truncate": False},
    ),
    "granite": Architecture("GraniteForCausalLM", "granite", GRANITE, turned=True),
    "granitemoe": Architecture(
        "GraniteMoeForCausalLM", "granitemoe", {**GRANITE, **LOCAL_EXPERTS}, turned=True
    ),
    "granitemoe with shared experts": Architecture(
        "GraniteMoeSharedForCausalLM", "granitemoeshared",
        {**GRANITE, **LOCAL_EXPERTS, SHARED: "shared_intermediate_size"},
        turned=True,
    ),
    "granitehybrid": Architecture(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid",
        {**GRANITE, **MAMBA, SHARED: "shared_intermediate_size"},
        {"num_local_experts": 0, **UNBOUNDED}, turned=True, headless="mamba", is_rotated=False,
        shares=MAMBA_SHARES,
    ),
    "granitehybrid with experts": Architecture(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid",
        {**GRANITE, **MAMBA, **LOCAL_EXPERTS, SHARED: "shared_intermediate_size"}, UNBOUNDED,
        turned=True, headless="mamba", is_rotated=False, shares=MAMBA_SHARES,
    ),
    "granitehybrid with rotations": Architecture(
        "BambaForCausalLM", "bamba", MAMBA, partial=True, turned=True, headless="mamba",
        shares=MAMBA_SHARES,
    ),
    # Multipliers are folded into the weights.
    "falcon-h1": Architecture(
        "FalconH1ForCausalLM", "falcon_h1", {**MAMBA, "ssm.inner_size": "mamba_d_ssm"},
        {"mamba_norm_before_gate": False}, shares={"mamba_d_head": "ssm.time_step_rank"},
        needed=("output.weight",),
    ),
    "nemotron_h": Architecture(
        "NemotronHForCausalLM", "nemotron_h",
        {
            "ssm.conv_kernel": "conv_kernel", "ssm.state_size": "ssm_state_size",
            "ssm.time_step_rank": "mamba_num_heads", "ssm.group_count": "n_groups",
        },
        eps="layer_norm_epsilon", turned=True, headless="mamba", halves=True, is_rotated=False,
        shares={"mamba_head_dim": "ssm.time_step_rank"},
    ),
    "mamba2": Architecture(
        "Mamba2ForCausalLM", "mamba2",
        {
            "ssm.conv_kernel": "conv_kernel", "ssm.state_size": "state_size",
            "ssm.time_step_rank": "num_heads", "ssm.group_count": "n_groups",
        },
        UNBOUNDED, eps="layer_norm_epsilon", has_heads=False,
        shares={"head_dim": "ssm.time_step_rank", "expand": "embedding_length"},
    ),
    "qwen3next": Architecture(
        "Qwen3NextForCausalLM", "qwen3_next",
        {**DELTA, **EXPERTS, **INNER, SHARED: "shared_expert_intermediate_size"}, partial=True,
        shares={"linear_value_head_dim": "ssm.time_step_rank"},
    ),
    "qwen35": Architecture(
        "Qwen3_5ForCausalLM", "qwen3_5_text", DELTA, partial=True,
        shares={"linear_value_head_dim": "ssm.time_step_rank"}, harmless=OF_IMAGES,
    ),
    "qwen35moe": Architecture(
        "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text",
        {**DELTA, **EXPERTS, **INNER, SHARED: "shared_expert_intermediate_size"}, partial=True,
        shares={"linear_value_head_dim": "ssm.time_step_rank"}, harmless=OF_IMAGES,
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", turned=True),
    "arcee": Architecture("ArceeForCausalLM", "arcee", turned=True),
    "ernie4_5": Architecture("Ernie4_5ForCausalLM", "ernie4_5"),
    "seed_oss": Architecture("SeedOssForCausalLM", "seed_oss"),
    "exaone4": Architecture("Exaone4ForCausalLM", "exaone4", WINDOW),
    "command-r": Architecture(
        "CohereForCausalLM", "cohere", {"logit_scale": "logit_scale"}, eps="layer_norm_eps"
    ),
    "cohere2": Architecture(
        "Cohere2ForCausalLM", "cohere2", {**WINDOW, "logit_scale": "logit_scale"},
        eps="layer_norm_eps",
    ),
    "nemotron": Architecture("NemotronForCausalLM", "nemotron", eps="norm_eps", partial=True),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM", "starcoder2", fixed={"sliding_window": 4096}, eps="norm_epsilon"
    ),
    "stablelm": Architecture(
        "StableLmForCausalLM", "stablelm", {"use_parallel_residual": "use_parallel_residual"},
        eps="layer_norm_eps", partial=True,
    ),
    "hunyuan-dense": Architecture("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"),
    "minimax-m2": Architecture(
        "MiniMaxM2ForCausalLM", "minimax_m2",
        {**LOCAL_EXPERTS, "expert_feed_forward_length": "intermediate_size"}, gate=SIGMOID,
        partial=True,
    ),
    "gptneox": Architecture(
        "GPTNeoXForCausalLM", "gpt_neox", {"use_parallel_residual": "use_parallel_residual"},
        eps="layer_norm_eps", partial=True,
    ),
    "bloom": Architecture(
        "BloomForCausalLM", "bloom", eps="layer_norm_epsilon",
        renamed={"max_position_embeddings": "seq_length"},
    ),
    "mpt": Architecture(
        "MptForCausalLM", "mpt",
        {
            "attention.clamp_kqv": "attn_config.clip_qkv",
            "attention.max_alibi_bias": "attn_config.alibi_bias_max",
        },
        eps="layer_norm_epsilon",
        renamed={
            "hidden_size": "d_model", "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads", "max_position_embeddings": "max_seq_len",
        },
    ),
    "gpt2": Architecture(
        "GPT2LMHeadModel", "gpt2", eps="layer_norm_epsilon",
        renamed={
            "hidden_size": "n_embd", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head", "max_position_embeddings": "n_positions",
        },
    ),
}  # fmt: skip
# (architecture, key, values, variant): the variant is meant if the key has one of the values; ():
# any but 0.
VARIANTS = (
    ("llama", "expert_count", (), "llama with experts"),
    # Files do not say whether there are QK-norms: only the model with fewer experts has them.
    ("llama4", "expert_count", (128,), "llama4 of 128 experts"),
    ("olmo2", "attention.sliding_window", (), "olmo2 with windows"),
    ("deepseek2", "expert_gating_func", (SIGMOID,), "deepseek2 with sigmoids"),
    ("granitemoe", SHARED, (), "granitemoe with shared experts"),
    ("granitehybrid", "rope.scaling.finetuned", (True,), "granitehybrid with rotations"),
    ("granitehybrid", "expert_count", (), "granitehybrid with experts"),
)  # fmt: skip
NAMES = tuple(name for name in ARCHITECTURES if " " not in name)
