"""How experts are moved between devices to balance their loads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BalanceConfig:
    """How often experts are moved, and by the loads of how many steps. Names are vLLM's."""

    num_redundant_experts: int = 0
    window_size: int = 1000
    step_interval: int = 3000
    log_balancedness: bool = False
