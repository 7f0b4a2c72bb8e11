"""Class names in config.json's `architectures`, and the file of the family that reads each."""

from __future__ import annotations

FAMILIES = {
    "LlamaForCausalLM": "jengine.models.families.llama",
    "MistralForCausalLM": "jengine.models.families.mistral",
    "Qwen2ForCausalLM": "jengine.models.families.qwen2",
    "Qwen3ForCausalLM": "jengine.models.families.qwen3",
    "Qwen3MoeForCausalLM": "jengine.models.families.qwen3_moe",
    "MixtralForCausalLM": "jengine.models.families.mixtral",
    "GemmaForCausalLM": "jengine.models.families.gemma",
    "Gemma2ForCausalLM": "jengine.models.families.gemma2",
    "Gemma3ForCausalLM": "jengine.models.families.gemma3",
    "Phi3ForCausalLM": "jengine.models.families.phi3",
    "Olmo2ForCausalLM": "jengine.models.families.olmo2",
    "SeedOssForCausalLM": "jengine.models.families.seed_oss",
    "GPT2LMHeadModel": "jengine.models.families.gpt2",
    "DeepseekV2ForCausalLM": "jengine.models.families.deepseek_v2",
    "DeepseekV3ForCausalLM": "jengine.models.families.deepseek_v3",
    "Qwen2MoeForCausalLM": "jengine.models.families.qwen2_moe",
    "OlmoeForCausalLM": "jengine.models.families.olmoe",
    "Glm4MoeForCausalLM": "jengine.models.families.glm4_moe",
    "GptOssForCausalLM": "jengine.models.families.gpt_oss",
    "GraniteForCausalLM": "jengine.models.families.granite",
    "GraniteMoeForCausalLM": "jengine.models.families.granite_moe",
    "GraniteMoeSharedForCausalLM": "jengine.models.families.granite_moe",
    "Llama4ForCausalLM": "jengine.models.families.llama4",
    "GPTNeoXForCausalLM": "jengine.models.families.gpt_neox",
    "OPTForCausalLM": "jengine.models.families.opt",
    "PhiForCausalLM": "jengine.models.families.phi",
    "CohereForCausalLM": "jengine.models.families.cohere",
    "Cohere2ForCausalLM": "jengine.models.families.cohere",
    "Glm4ForCausalLM": "jengine.models.families.glm4",
    "GlmForCausalLM": "jengine.models.families.glm4",
    "StableLmForCausalLM": "jengine.models.families.stablelm",
    "NemotronForCausalLM": "jengine.models.families.nemotron",
    "Olmo3ForCausalLM": "jengine.models.families.olmo3",
    "SmolLM3ForCausalLM": "jengine.models.families.smollm3",
    "Exaone4ForCausalLM": "jengine.models.families.exaone4",
    "Lfm2ForCausalLM": "jengine.models.families.lfm2",
    "BambaForCausalLM": "jengine.models.families.bamba",
    "Qwen3NextForCausalLM": "jengine.models.families.qwen3_next",
    "Qwen3_5ForCausalLM": "jengine.models.families.qwen3_5",
    "Qwen3_5MoeForCausalLM": "jengine.models.families.qwen3_5",
    "GraniteMoeHybridForCausalLM": "jengine.models.families.granite_hybrid",
    "NemotronHForCausalLM": "jengine.models.families.nemotron_h",
    "BloomForCausalLM": "jengine.models.families.bloom",
    "MptForCausalLM": "jengine.models.families.mpt",
    "MPTForCausalLM": "jengine.models.families.mpt",
    "FalconH1ForCausalLM": "jengine.models.families.falcon_h1",
    "Starcoder2ForCausalLM": "jengine.models.families.starcoder2",
    "MiniCPM3ForCausalLM": "jengine.models.families.minicpm3",
    "Ernie4_5ForCausalLM": "jengine.models.families.ernie4_5",
    "ArceeForCausalLM": "jengine.models.families.arcee",
    "MiniMaxM2ForCausalLM": "jengine.models.families.minimax_m2",
    "Glm4MoeLiteForCausalLM": "jengine.models.families.glm4_moe_lite",
    "Qwen2VLForConditionalGeneration": "jengine.models.families.qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "jengine.models.families.qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "jengine.models.families.qwen3_vl",
    "LlavaForConditionalGeneration": "jengine.models.families.llava",
    "BertModel": "jengine.models.families.bert",
    "BertForSequenceClassification": "jengine.models.families.bert",
    "BertForTokenClassification": "jengine.models.families.bert",
    "BertForMaskedLM": "jengine.models.families.bert",
    "HF_ColBERT": "jengine.models.families.bert",
    "RobertaModel": "jengine.models.families.roberta",
    "RobertaForSequenceClassification": "jengine.models.families.roberta",
    "RobertaForTokenClassification": "jengine.models.families.roberta",
    "RobertaForMaskedLM": "jengine.models.families.roberta",
    "XLMRobertaModel": "jengine.models.families.roberta",
    "XLMRobertaForSequenceClassification": "jengine.models.families.roberta",
    "XLMRobertaForTokenClassification": "jengine.models.families.roberta",
    "XLMRobertaForMaskedLM": "jengine.models.families.roberta",
    "NomicBertModel": "jengine.models.families.nomic_bert",
    "ModernBertModel": "jengine.models.families.modernbert",
    "ModernBertForSequenceClassification": "jengine.models.families.modernbert",
    "ModernBertForTokenClassification": "jengine.models.families.modernbert",
    "ModernBertForMaskedLM": "jengine.models.families.modernbert",
    "InternVLForConditionalGeneration": "jengine.models.families.internvl",
    "Gemma3ForConditionalGeneration": "jengine.models.families.gemma3_vision",
    "WhisperForConditionalGeneration": "jengine.models.families.whisper",
    "BartForConditionalGeneration": "jengine.models.families.bart",
    "T5ForConditionalGeneration": "jengine.models.families.t5",
    "MT5ForConditionalGeneration": "jengine.models.families.t5",
}
# Ends of class names that have another head than the one that writes, or none.
POOLED_ENDINGS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForProcessRewardModel",
    "ForRewardModel",
    "ForEmbedding",
    "Model",
)
# Bare classes with other names.
BODIES = {"Gemma3TextModel": "Gemma3ForCausalLM"}
SPARSE_INDEXER = "it attends to the tokens that a sparse indexer picks, which is not built"
GEMMA3N = (
    "embeddings of each layer, several residual streams that predict each other (AltUp), low-rank"
    " residuals (LAuReL), layers that read the keys and values of others, and activations that keep"
    " the largest only are not built"
)
GEMMA4 = (
    "embeddings of each layer, layers that read the keys and values of others or have no values of"
    " their own, a factor of each layer, and experts beside an MLP with norms of their own are not"
    " built"
)
BIASES_OF_LAYERS = "biases of scores by distance that every layer has for itself are not read"
# Architectures that look like a native one and are not: what is missing.
REFUSED = {
    "Gemma3nForCausalLM": GEMMA3N,
    "Gemma3nForConditionalGeneration": GEMMA3N,
    "Gemma4ForCausalLM": GEMMA4,
    "Gemma4ForConditionalGeneration": GEMMA4,
    "UMT5ForConditionalGeneration": BIASES_OF_LAYERS,
    "DeepseekV32ForCausalLM": SPARSE_INDEXER,
    "GlmMoeDsaForCausalLM": SPARSE_INDEXER,
}
