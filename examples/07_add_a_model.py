"""Add a model family from your own code: Starcoder2, which jengine does not ship.

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
from jengine.config import LayerConfig, ModelConfig
from jengine.models.checkpoint import Names
from jengine.models.fields import Fields
from jengine.models.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.hf_write import write_decoder, written_window


class Starcoder2:
    """Positions and shared keys as Llama has them; layer norms, plain MLP and biases as GPT-2."""

    ARCHITECTURES = ("Starcoder2ForCausalLM",)
    MODELS = "StarCoder2"
    # Only what differs from Llama's names, without '.weight' and '.bias'.
    NAMES = Names(gate_up=("mlp.c_fc",), down="mlp.c_proj")
    # What transformers assumes for keys that config.json leaves out.
    DEFAULTS = Defaults(
        vocab_size=49152,
        hidden_size=3072,
        intermediate_size=12288,
        num_layers=30,
        num_heads=24,
        num_kv_heads=2,
        head_dim=None,
        max_position=4096,
        activation="gelu_pytorch_tanh",
        tie_embeddings=True,
        bos_token_id=50256,
        eos_token_id=50256,
    )

    def read_config(self, hf: Mapping[str, object]) -> ModelConfig:
        """config.json in the decoder's words. What cannot be honoured is refused, never ignored."""
        fields = Fields(hf)
        if not fields.flag("use_bias", True):
            fields.refuse("use_bias", "true: the decoder's plain MLP has biases")
        attention = read_attention(fields, self.DEFAULTS, qkv_bias=True, output_bias=True)
        attention = replace(attention, window=fields.optional_integer("sliding_window", None))
        mlp = replace(read_mlp(fields, self.DEFAULTS), gated=False, biases=True)
        layers = (LayerConfig(attention, mlp),) * read_num_layers(fields, self.DEFAULTS)
        config = read_decoder(fields, self.DEFAULTS, layers)
        epsilon = fields.number("norm_epsilon", 1e-5, above_minimum=True)
        return replace(config, norm="layer", norm_eps=epsilon)

    def write_config(self, config: ModelConfig) -> dict[str, object]:
        """The inverse, for `llm.save`."""
        return {
            **write_decoder(config),
            "model_type": "starcoder2",
            "norm_epsilon": config.norm_eps,
            "use_bias": True,
            "sliding_window": written_window(config),
        }


TINY = {
    "architectures": ["Starcoder2ForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "sliding_window": 64,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def main() -> None:
    register_model(Starcoder2())
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
