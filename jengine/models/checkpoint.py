"""How checkpoint tensors lie in our parameters: names, shapes, which part, transposed or not.

The same pieces are used to load and to save. Standard Hugging Face names of decoder-only models
are declared here, once for all families. Must not know files or devices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from jengine.config import ModelConfig

Index = tuple[int | slice, ...]
# Columns turned at a time: numpy then stays within the processor's cache, 2 to 4 times as fast.
STRIPE = 32


@dataclass(frozen=True)
class Piece:
    """One checkpoint tensor of `shape` and the part of our parameter that it fills.

    A matrix is stored [out, in] and kept here [in, out] (`transpose`); its two axes are then split
    as the part `parameter[index]` is. Both steps are views, and both can be undone.
    """

    name: str
    shape: tuple[int, ...]
    index: Index = ()
    transpose: bool = False

    def fill(self, parameter: np.ndarray, tensor: np.ndarray) -> None:
        """Write the checkpoint's tensor into its part of the parameter."""
        part = parameter[self.index]
        if not self.transpose:
            part[...] = tensor.reshape(part.shape)
            return
        turned = tensor.T.reshape(part.shape)
        for start in range(0, part.shape[-1], STRIPE):
            stripe = slice(start, start + STRIPE)
            part[..., stripe] = turned[..., stripe]

    def take(self, parameter: np.ndarray) -> np.ndarray:
        """The checkpoint's tensor out of the parameter; the inverse of `fill`."""
        part = parameter[self.index]
        if not self.transpose:
            return part.reshape(self.shape)
        return part.reshape(self.shape[::-1]).T


@dataclass(frozen=True)
class IgnoredTensor:
    """A tensor that a checkpoint may hold although no parameter needs it.

    `same_as` names the tensor whose copy it must be.
    """

    pattern: str
    reason: str
    same_as: str | None = None

    def matches(self, name: str) -> bool:
        """Whether this rule covers the tensor of that name."""
        return re.fullmatch(self.pattern, name) is not None


EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def decoder_pieces(config: ModelConfig) -> dict[str, tuple[Piece, ...]]:
    """Parameter path -> pieces, for the shared decoder body."""
    vocab, hidden = config.vocab_size, config.hidden_size
    pieces: dict[str, tuple[Piece, ...]] = {
        "embed": (Piece(EMBED, (vocab, hidden)),),
        "final_norm": (Piece("model.norm.weight", (hidden,)),),
    }
    if not config.tie_embeddings:
        pieces["head"] = (Piece(HEAD, (vocab, hidden), transpose=True),)
    for layer in range(len(config.layers)):
        theirs = f"model.layers.{layer}"
        ours = {**_attention(config, theirs), **_mlp(config, theirs)}
        pieces.update({f"layers.{layer}.{path}": found for path, found in ours.items()})
    return pieces


def ignored_in_decoder(config: ModelConfig) -> tuple[IgnoredTensor, ...]:
    """What old or redundant files of these families hold besides."""
    frequencies = IgnoredTensor(
        r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
        "old files store the rotary frequencies, which follow from config.json",
    )
    if not config.tie_embeddings:
        return (frequencies,)
    head = IgnoredTensor(
        re.escape(HEAD), "the head is tied to the embedding, so this is a copy", same_as=EMBED
    )
    return (frequencies, head)


def _attention(config: ModelConfig, layer: str) -> dict[str, tuple[Piece, ...]]:
    """Queries, keys and values share one parameter [hidden, kv, group + 2, dim]."""
    hidden, dim, kv = config.hidden_size, config.head_dim, config.num_kv_heads
    group = config.num_heads // kv
    parts = {"q": slice(0, group), "k": group, "v": group + 1}
    rows = {"q": config.num_heads * dim, "k": kv * dim, "v": kv * dim}
    every = slice(None)
    attention = f"{layer}.self_attn"
    out = f"{attention}.o_proj"
    pieces: dict[str, tuple[Piece, ...]] = {
        "attention_norm": (Piece(f"{layer}.input_layernorm.weight", (hidden,)),),
        "attention.qkv": tuple(
            Piece(f"{attention}.{x}_proj.weight", (rows[x], hidden), (every, every, part), True)
            for x, part in parts.items()
        ),
        "attention.out": (Piece(f"{out}.weight", (hidden, rows["q"]), transpose=True),),
    }
    if config.qkv_bias:
        pieces["attention.qkv_bias"] = tuple(
            Piece(f"{attention}.{x}_proj.bias", (rows[x],), (every, part))
            for x, part in parts.items()
        )
    if config.output_bias:
        pieces["attention.out_bias"] = (Piece(f"{out}.bias", (hidden,)),)
    if config.qk_norm:
        pieces["attention.q_norm"] = (Piece(f"{attention}.q_norm.weight", (dim,)),)
        pieces["attention.k_norm"] = (Piece(f"{attention}.k_norm.weight", (dim,)),)
    return pieces


def _mlp(config: ModelConfig, layer: str) -> dict[str, tuple[Piece, ...]]:
    """Gate and up share one parameter [hidden, 2, inner]."""
    hidden, inner = config.hidden_size, config.intermediate_size
    gate_up = tuple(
        Piece(f"{layer}.mlp.{name}_proj.weight", (inner, hidden), (slice(None), part), True)
        for part, name in enumerate(("gate", "up"))
    )
    return {
        "mlp_norm": (Piece(f"{layer}.post_attention_layernorm.weight", (hidden,)),),
        "mlp.gate_up": gate_up,
        "mlp.down": (Piece(f"{layer}.mlp.down_proj.weight", (hidden, inner), transpose=True),),
    }
