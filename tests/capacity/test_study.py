"""Studies of whole fleets: the search for a rate, the pools of a split, and what is kept."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from jengine.capacity.simulation.study import (
    FINER,
    KEPT,
    QUESTIONS,
    FleetPlan,
    FleetSplit,
    highest,
    scaled,
    section,
)
from jengine.errors import ConfigError
from jengine.pictures.page import as_markdown

GIVEN = Namespace(device="h200", network=400.0, balancedness=0.8, price=2.0, seed=0)


@pytest.mark.parametrize("start", [0.1, 7.0, 400.0])
def test_the_highest_good_rate_is_found(start: float) -> None:
    good, found, failed = highest(start, lambda rate: rate, lambda rate: rate <= 7.3)
    assert good == found <= 7.3 < failed <= FINER * good


def test_without_a_good_rate_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match="give other ones"):
        highest(1.0, lambda rate: rate, lambda rate: False)


def test_pools_share_the_gpus_of_a_fleet() -> None:
    fleet = FleetPlan(QUESTIONS["chat-70b"], FleetSplit(4, prompts=1, of=4), 64, GIVEN)
    prefill, decode = fleet.pools()
    assert (prefill.replicas, decode.replicas) == (4, 12)
    assert fleet.groups == 4


def test_experts_need_their_gpus() -> None:
    split = FleetSplit(1, ep=64, prompts=1, of=4)
    with pytest.raises(ConfigError, match="48 GPUs are not whole replicas of EP 64"):
        FleetPlan(QUESTIONS["deepseek-v3"], split, 64, GIVEN).pools()
    pools = FleetPlan(QUESTIONS["deepseek-v3"], split, 256, GIVEN).pools()
    assert [pool.replicas for pool in pools] == [64, 192]


def test_more_groups_answer_more_in_less_time() -> None:
    found = scaled({"goodput": 2.0, "hours": 8.0, "dollars": 5.0}, 4)
    assert found == {"goodput": 8.0, "hours": 2.0, "dollars": 5.0}


@pytest.mark.parametrize("file", sorted(KEPT.glob("fleet-*.json")), ids=lambda file: file.stem)
def test_what_is_kept_adds_up(file: Path) -> None:
    result = json.loads(file.read_text(encoding="utf-8"))
    price = result["assumed"]["dollars_per_gpu_hour"]
    rows = [row for row in result["rows"] if "goodput" in row]
    assert {row["gpus"] for row in rows} == {64, 256, 1024}
    for row in rows:
        cost = row["gpus"] * price / 3600 / row["output_tokens_per_second"] * 1e6
        assert row["dollars_per_million_output_tokens"] == pytest.approx(cost)
        for pool in row["pools"].values():
            assert sum(pool["step_shares"].values()) == pytest.approx(1)
    assert result["command"] in as_markdown(section(result))
