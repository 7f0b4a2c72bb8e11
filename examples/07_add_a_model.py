"""Add a model family from your own code: GPT-J, which jengine does not ship.

A family is data, as long as the shared decoder's parts suffice: what config.json says, in the
decoder's words, and what the tensors are called. This file is the whole recipe; the steps and what
to do when a part is missing are under 'Add a model' in CONTRIBUTING.md.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jengine import LLM, SamplingParams, register_model
from jengine.models.family import (
    Defaults,
    Fields,
    IgnoredTensor,
    LayerConfig,
    ModelConfig,
    Names,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
    write_decoder,
    written_attention,
)


class GPTJ:
    """Attention and MLP read one layer norm; the first lanes of heads rotate, as neighbours."""

    ARCHITECTURES = ("GPTJForCausalLM",)
    MODELS = "GPT-J"
    # Only what differs from Llama's names, without '.weight' and '.bias'.
    NAMES = Names(
        prefix="transformer.",
        embed="wte",
        layers="h",
        final_norm="ln_f",
        before_attention="ln_1",
        qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        rotates_neighbours=True,
        attention_out="attn.out_proj",
        gate_up=("mlp.fc_in",),
        down="mlp.fc_out",
        ignored=(
            IgnoredTensor(r"transformer\.h\.\d+\.attn\.(masked_)?bias", "old files hold the mask"),
        ),
    )
    # What transformers assumes for keys that config.json leaves out.
    DEFAULTS = Defaults(
        vocab_size=50400,
        hidden_size=4096,
        intermediate_size=16384,
        num_layers=28,
        num_heads=16,
        num_kv_heads=None,
        head_dim=None,
        max_position=2048,
        norm_eps=1e-5,
        norm_eps_key="layer_norm_epsilon",
        partial_rotary=1.0,
        activation="gelu_new",
        activation_key="activation_function",
        bos_token_id=50256,
        eos_token_id=50256,
    )
    # GPT-J's names of what most families call otherwise.
    KEYS = {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
    }

    def read_config(self, hf: Mapping[str, object]) -> ModelConfig:
        """config.json in the decoder's words. What cannot be honoured is refused, never ignored."""
        usual = {ours: hf[key] for key, ours in self.KEYS.items() if hf.get(key) is not None}
        fields = Fields({**hf, **usual})
        if fields.flag("tie_word_embeddings", False):
            fields.refuse("tie_word_embeddings", "false, as in GPT-J")
        attention = read_attention(fields, self.DEFAULTS)
        rotated = fields.integer("rotary_dim", 64, maximum=attention.head_dim)
        rope = replace(attention.rope, rotated=rotated)
        mlp = replace(read_mlp(fields, self.DEFAULTS), gated=False, biases=True)
        if "intermediate_size" not in usual:
            hidden = fields.integer("hidden_size", self.DEFAULTS.hidden_size)
            mlp = replace(mlp, intermediate_size=4 * hidden)
        layer = LayerConfig(replace(attention, rope=rope), mlp)
        layers = (layer,) * read_num_layers(fields, self.DEFAULTS)
        config = read_decoder(fields, self.DEFAULTS, layers)
        return replace(config, norm="layer", block="parallel_one_norm", head_bias=True)

    def write_config(self, config: ModelConfig) -> dict[str, object]:
        """The inverse, for `llm.save`."""
        written = write_decoder(config, self.DEFAULTS.norm_eps_key)
        own = {key: written[ours] for key, ours in self.KEYS.items()}
        return {
            **{key: written[key] for key in ("vocab_size", "layer_norm_epsilon", "architectures")},
            **{key: written[key] for key in ("initializer_range", "torch_dtype")},
            **{key: written[key] for key in ("bos_token_id", "eos_token_id")},
            **own,
            "model_type": "gptj",
            "rotary_dim": written_attention(config).rope.rotated,
            "activation_function": "gelu_new",
        }


TINY = {
    "architectures": ["GPTJForCausalLM"],
    "vocab_size": 97,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_inner": 64,
    "n_positions": 256,
    "rotary_dim": 8,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def main() -> None:
    register_model(GPTJ())
    settings = {"skip_tokenizer_init": True, "max_num_seqs": 2, "enforce_eager": True}
    params = SamplingParams(temperature=0, max_tokens=8)
    with tempfile.TemporaryDirectory() as temporary:
        shape, folder = Path(temporary, "shape"), Path(temporary, "model")
        shape.mkdir()
        (shape / "config.json").write_text(json.dumps(TINY))
        with LLM(shape, load_format="dummy", **settings) as llm:  # random weights
            first = llm.generate([[5, 6, 7]], params)[0].outputs[0].token_ids
            llm.save(folder)  # as transformers would store it
        with LLM(folder, **settings) as llm:
            again = llm.generate([[5, 6, 7]], params)[0].outputs[0].token_ids
    print("random weights say", *first)
    assert again == first, "what was saved reads back as the same model"


if __name__ == "__main__":
    main()
