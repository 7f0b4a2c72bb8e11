"""Placements of experts: every one has a slot, and devices have equal loads where they can."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jengine.assembly.settings.expert_settings import balance_config
from jengine.config import BalanceConfig
from jengine.errors import ConfigError
from jengine.executor.balanced_experts import BalancedExperts, SpreadExperts, balanced, balancedness
from jengine.executor.calls import encoded_answer
from jengine.outputs import StepOutput
from jengine.plan import NO_ENTRIES, Plan


@given(
    st.integers(1, 4).flatmap(
        lambda devices: st.tuples(
            st.just(devices),
            st.integers(1, 4).map(lambda each: each * devices),
            st.integers(0, 3).map(lambda more: more * devices),
        )
    ),
    st.randoms(use_true_random=False),
)
def test_every_expert_has_a_slot(sizes: tuple[int, int, int], random: Any) -> None:
    devices, experts, redundant = sizes
    loads = np.array([random.randrange(1000) for _ in range(experts)])
    placement = balanced(loads, experts + redundant, devices)
    assert len(placement) == experts + redundant
    assert set(placement) == set(range(experts))


def test_a_busy_expert_is_on_several_devices() -> None:
    loads = np.array([90, 10, 10, 10])
    placement = balanced(loads, 8, 4)
    copies = np.bincount(placement)
    assert copies[0] == max(copies) and copies[0] > 2
    assert len({slot // 2 for slot, expert in enumerate(placement) if expert == 0}) >= 3
    linear = [slot % 4 for slot in range(8)]
    assert balancedness(loads, placement, 4) > balancedness(loads, linear, 4)


def test_without_copies_heavy_experts_are_apart() -> None:
    placement = balanced(np.array([50, 50, 1, 1]), 4, 2)
    assert {placement.index(0) // 2, placement.index(1) // 2} == {0, 1}
    assert balancedness(np.array([50, 50, 1, 1]), placement, 2) == 1.0


class Steps:
    """An executor whose steps pick these experts in the one layer of two that has some."""

    def __init__(self, picked: list[int]) -> None:
        self.output = StepOutput(
            np.zeros((1, 1), np.int32),
            experts=np.array([[[0], [expert]] for expert in picked], np.uint8),
        )
        self.moves: list[int] = []  # after how many steps
        self.steps = 0

    update_weights = health = shutdown = None  # nobody asks for them

    def submit(self, plan: Plan) -> Any:
        self.steps += 1
        return self

    def result(self) -> StepOutput:
        return self.output

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        assert method == "place_experts"
        self.moves.append(self.steps)
        return [encoded_answer([[0, 1, 2, 3]])]


def test_experts_move_by_the_loads_of_the_window(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps([1, 1, 1, 0])
    config = BalanceConfig(window_size=2, step_interval=5, log_balancedness=True)
    spread = SpreadExperts((1,), experts=4, devices=2)
    executor = BalancedExperts(steps, spread, config, returns=False)  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO):
        for _ in range(12):
            assert executor.submit(Plan(0, NO_ENTRIES, 0)).result().experts is None
    assert steps.moves == [5, 10]
    # Expert 0 and 1 had been on one device: 4 of 4 tokens there, then 3 and 1.
    assert "balancedness 0.50, 0.67" in caplog.text


def test_they_stay_where_no_token_ran() -> None:
    steps = Steps([])
    steps.output = steps.output._replace(experts=np.zeros((0, 2, 1), np.uint8))
    spread = SpreadExperts((1,), experts=4, devices=2)
    executor = BalancedExperts(steps, spread, BalanceConfig(step_interval=1), returns=True)  # type: ignore[arg-type]
    for _ in range(3):
        assert executor.submit(Plan(0, NO_ENTRIES, 0)).result().experts is not None
    assert not steps.moves


@pytest.mark.parametrize(
    ("enabled", "given_config", "said"),
    [
        (False, {"window_size": 3}, "without enable_eplb"),
        (True, {"window_sizes": 3}, "no key 'window_sizes'.*window_size"),
        (True, {"step_interval": 0}, "step_interval.*=0: expected an integer of at least 1"),
        (True, {"num_redundant_experts": -1}, "at least 0"),
        (True, {"log_balancedness": "yes"}, "log_balancedness"),
    ],
)
def test_bad_settings_are_refused(enabled: bool, given_config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        balance_config(enabled, given_config)
    assert balance_config(True, None) == BalanceConfig()
    assert balance_config(False, None) is None
