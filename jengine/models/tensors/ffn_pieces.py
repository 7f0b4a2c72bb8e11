"""Checkpoint tensors of feed-forward blocks, dense or mixture of experts, by parameter path."""

from __future__ import annotations

from dataclasses import replace

from jengine.config import ExpertsConfig, FfnConfig, MlpConfig
from jengine.models.tensors.checkpoint import EVERY, Index, Names, Piece
from jengine.models.tensors.matrix_pieces import Pieces, biases, matrices


def ffn_pieces(hidden: int, config: FfnConfig, names: Names, layer: str) -> Pieces:
    """Pieces of one layer's block."""
    if isinstance(config, ExpertsConfig):
        return _experts_mlp(hidden, config, names, layer)
    up = tuple(layer + name for name in names.gate_up)
    pieces = _mlp("mlp", hidden, config, names, up, layer + names.down)
    if config.inner_norm:
        norm = Piece(f"{layer}{names.inner_norm}.weight", (config.intermediate_size,))
        pieces["mlp.norm.weight"] = (norm,)
    if config.activation == "xielu":
        theirs = layer + names.rates
        pieces |= {
            "mlp.rates.positive": (Piece(f"{theirs}.alpha_p", (1,)),),
            "mlp.rates.negative": (Piece(f"{theirs}.alpha_n", (1,)),),
            "mlp.rates.slope": (Piece(f"{theirs}.beta", (), view=(1,)),),
            "mlp.rates.highest": (Piece(f"{theirs}.eps", (), view=(1,)),),
        }
    return pieces


def _mlp(
    path: str, hidden: int, config: MlpConfig, names: Names, up: tuple[str, ...], down: str
) -> Pieces:
    inner = config.intermediate_size
    first, sizes = ("gate_up", (inner, inner)) if config.gated else ("up", (inner,))
    pieces = {
        f"{path}.down.weight": matrices(names, [down], inner, (hidden,), [()]),
        f"{path}.{first}.weight": matrices(
            names, up, hidden, sizes, [(EVERY, 0), (EVERY, 1)] if config.gated else [()]
        ),
    }
    if config.biases:
        ours: list[Index] = [(0,), (1,)] if config.gated else [()]
        pieces[f"{path}.{first}.bias"] = biases(up, sizes, ours)
        pieces[f"{path}.down.bias"] = biases([down], (hidden,), [()])
    return pieces


def _experts_mlp(hidden: int, config: ExpertsConfig, names: Names, layer: str) -> Pieces:
    """Pieces of router, experts and shared MLP."""
    count, router = config.num_experts, layer + names.router
    pieces: Pieces = {
        "mlp.router.weight": matrices(names, [router], hidden, (count,), [()]),
        **EXPERTS.get(names.expert_layout, _stacked)(hidden, config, names, layer),
    }
    if config.routing.logits_bias:
        pieces["mlp.router.bias"] = biases([router], (count,), [()])
    if config.routing.choice_bias:
        name, rows = layer + names.choice_bias, names.choice_bias_rows
        own = Piece(name, (1, count), source=(0,)) if rows else Piece(name, (count,))
        pieces["mlp.choice_bias"] = (replace(own, optional=names.choice_bias_optional),)
    if config.out_norm:
        norm = f"{layer}{names.experts_norm}.weight"
        pieces["mlp.out_norm.weight"] = (Piece(norm, (hidden,)),)
    if config.shared_size:
        shared = MlpConfig(config.shared_size, config.activation)
        up, down = (layer + name for name in names.shared_gate_up), layer + names.shared_down
        pieces |= _mlp("mlp.shared", hidden, shared, names, tuple(up), down)
    if config.shared_gate:
        gate = [layer + names.shared_gate]
        pieces["mlp.shared_gate.weight"] = matrices(names, gate, hidden, (1,), [()])
    return pieces


def _apart(hidden: int, config: ExpertsConfig, names: Names, layer: str) -> Pieces:
    """Experts in separate tensors, each a slice of [experts, hidden, inner, 2] or [experts, inner,
    hidden]."""
    inner = config.intermediate_size
    gate_up: list[Piece] = []
    down: list[Piece] = []
    for expert in range(config.num_experts):
        theirs = f"{layer}{names.experts}.{expert}."
        both = [theirs + name for name in names.expert_gate_up]
        parts: list[Index] = [(expert, EVERY, EVERY, 0), (expert, EVERY, EVERY, 1)]
        gate_up += matrices(names, both, hidden, (inner, inner), parts)
        down += matrices(names, [theirs + names.expert_down], inner, (hidden,), [(expert,)])
    return {"mlp.gate_up.weight": tuple(gate_up), "mlp.down.weight": tuple(down)}


def _in_rows(hidden: int, config: ExpertsConfig, names: Names, layer: str) -> Pieces:
    """Experts concatenated by rows: one tensor each for all gates, ups and downs."""
    inner, count = config.intermediate_size, config.num_experts
    shape, view = (count * inner, hidden), (count, inner)
    return {
        "mlp.gate_up.weight": tuple(
            Piece(layer + name, shape, (expert, EVERY, EVERY, half), True, (expert,), view)
            for expert in range(count)
            for half, name in enumerate(names.expert_gate_up)
        ),
        "mlp.down.weight": (Piece(layer + names.expert_down, shape, view=view),),
    }


def _stacked(hidden: int, config: ExpertsConfig, names: Names, layer: str) -> Pieces:
    """Experts stacked: one tensor per projection."""
    inner, count = config.intermediate_size, config.num_experts
    [name] = names.expert_gate_up
    up, down = layer + name, layer + names.expert_down
    halves = slice(0, inner), slice(inner, 2 * inner)
    if names.expert_layout == "outputs_first":
        return {
            "mlp.gate_up.weight": tuple(
                Piece(up, (count, 2 * inner, hidden), (expert, EVERY, EVERY, half), True, source)
                for expert in range(count)
                for half, source in enumerate((expert, rows) for rows in halves)
            ),
            "mlp.down.weight": tuple(
                Piece(down, (count, hidden, inner), (expert,), True, (expert,))
                for expert in range(count)
            ),
        }
    shape = (count, hidden, 2 * inner)
    if names.expert_layout == "inputs_first_pairs":
        both = (Piece(up, shape),)
    else:
        both = tuple(
            Piece(up, shape, (EVERY, EVERY, EVERY, half), source=(EVERY, EVERY, columns))
            for half, columns in enumerate(halves)
        )
    pieces: Pieces = {
        "mlp.gate_up.weight": both,
        "mlp.down.weight": (Piece(down, (count, inner, hidden)),),
    }
    if config.biases:
        pieces["mlp.gate_up.bias"] = (Piece(f"{up}_bias", (count, 2 * inner)),)
        pieces["mlp.down.bias"] = (Piece(f"{down}_bias", (count, hidden)),)
    return pieces


EXPERTS = {"apart": _apart, "rows": _in_rows}
