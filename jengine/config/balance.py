"""Expert load balancing settings (EPLB)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BalanceConfig:
    """Frequency of rebalancing and its load window, in steps. Names are vLLM's."""

    num_redundant_experts: int = 0
    window_size: int = 1000
    step_interval: int = 3000
    log_balancedness: bool = False
