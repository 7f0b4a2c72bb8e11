"""Reads PEFT's adapter_config.json: ranks and scales per module.

In: a parsed file. Out: a PeftConfig, or a CheckpointError that names the key. Settings that change
the meaning of the matrices and are unsupported are refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from jengine.models.reading.fields import Fields

T = TypeVar("T")

MOST_RANK = 4096
# Unsupported keys -> values under which they have no effect.
NOT_BUILT: dict[str, tuple[object, ...]] = {
    "use_dora": (None, False),
    "lora_bias": (None, False),
    "bias": (None, "none"),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (None, False),
    "use_bdlora": (None, False, {}),
    "trainable_token_indices": (None, [], {}),
}
# Accepted values of init_lora_weights. Others, such as PiSSA, change the base weights.
PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")


@dataclass(frozen=True)
class PeftConfig:
    """Rank and alpha, with overrides per module pattern."""

    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    stabilized: bool  # scale is alpha / sqrt(rank) instead of alpha / rank
    parameters: tuple[str, ...] = ()  # target_parameters, as of fused experts

    def rank_of(self, module: str) -> int:
        """Rank of a module, by checkpoint name."""
        return _matching(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Scale of the update: alpha / rank, or alpha / sqrt(rank) for rsLoRA."""
        rank, alpha = self.rank_of(module), _matching(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.stabilized else rank)


def read_adapter_config(values: Mapping[str, object], where: str) -> PeftConfig:
    """Parse adapter_config.json. Raises CheckpointError."""
    fields = Fields(values, where)
    fields.choice("peft_type", "LORA", {"LORA": "LORA"})
    for key, nothing in NOT_BUILT.items():
        if fields.values.get(key) not in nothing:
            fields.refuse(key, f"{nothing[-1]!r}: it is not built")
    start = fields.values.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower() not in PLAIN_STARTS:
        fields.refuse("init_lora_weights", "a start that leaves the base model as it was")
    rank = fields.integer("r", maximum=MOST_RANK)
    ranks, alphas = _pattern(fields, "rank_pattern"), _pattern(fields, "alpha_pattern")
    return PeftConfig(
        rank,
        fields.number("lora_alpha", 8.0, above_minimum=True),
        {key: ranks.integer(key, maximum=MOST_RANK) for key in ranks.values},
        {key: alphas.number(key, above_minimum=True) for key in alphas.values},
        fields.flag("use_rslora", False),
        tuple(map(str, fields.values.get("target_parameters") or ())),
    )


def _pattern(fields: Fields, key: str) -> Fields:
    """rank_pattern or alpha_pattern: values by regular expression over module names. Raises
    CheckpointError for an invalid expression."""
    own = fields.part(key) or Fields({})
    for pattern in own.values:
        try:
            re.compile(pattern)
        except re.error as error:
            fields.refuse(key, f"regular expressions as keys ({pattern!r}: {error})")
    return own


def _matching(pattern: Mapping[str, T], module: str, default: T) -> T:
    """Value of the first pattern that matches the module name or its last dotted components."""
    for key, value in pattern.items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default
