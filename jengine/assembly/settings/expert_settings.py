"""Expert load balancing: the keys of `eplb_config`. No jax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jengine.assembly.settings.dict_settings import checked_keys
from jengine.assembly.settings.values import switch
from jengine.config import BalanceConfig
from jengine.errors import ConfigError

EPLB_KEYS = {
    "num_redundant_experts": "slots beyond one for each expert",
    "window_size": "steps whose loads count, of those before experts move",
    "step_interval": "steps between two moves",
    "log_balancedness": "whether each move is logged, with the mean load of a device as a share of "
    "the largest",
}


def balance_config(enabled: bool, given: Mapping[str, Any] | None) -> BalanceConfig | None:
    """The validated config; None if `enabled` is False."""
    checked_keys("eplb_config", given, EPLB_KEYS)
    if not enabled:
        if given:
            raise ConfigError("eplb_config without enable_eplb=True. Give both or neither.")
        return None
    config = BalanceConfig(**(given or {}))
    for name in ("num_redundant_experts", "window_size", "step_interval"):
        value, least = getattr(config, name), int(name != "num_redundant_experts")
        if type(value) is not int or value < least:
            raise ConfigError(
                f"eplb_config[{name!r}]={value!r}: expected an integer of at least {least}."
            )
    switch("eplb_config['log_balancedness']", config.log_balancedness)
    return config
