"""The nodes of one engine, as its settings say."""

from __future__ import annotations

from typing import Any

import pytest

from jengine import AsyncLLM
from jengine.assembly.settings.args import EngineArgs
from jengine.errors import ConfigError, UnsupportedFeature


def test_one_node_is_usual() -> None:
    assert not EngineArgs("demo").nodes.several
    assert EngineArgs("demo", distributed_executor_backend="mp").executor == "auto"


def test_where_nodes_meet() -> None:
    args = EngineArgs("demo", nnodes=3, node_rank=2, master_addr="fd00::1", master_port=7)
    assert args.nodes.several and args.nodes.coordinator == "[fd00::1]:7"
    assert not args.replicas_in_processes


def test_nodes_with_whole_replicas_are_ranks_that_join_node_0() -> None:
    args = EngineArgs(
        "demo", nnodes=2, node_rank=1, master_addr="10.0.0.1", data_parallel_size=4,
        tensor_parallel_size=2,
    )  # fmt: skip
    assert not args.nodes.several and args.replicas_in_processes
    assert args.ranks == (4, range(2, 4)) and args.data_parallel_address == "10.0.0.1"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"nnodes": 0}, "nnodes=0: expected a number from 1"),
        ({"nnodes": "2"}, "nnodes='2': expected an integer"),
        ({"nnodes": 2, "node_rank": 2}, "node_rank=2: expected a number from 0 to 1"),
        ({"nnodes": 2, "master_port": 0}, "master_port=0: expected a number from 1 to 65535"),
        ({"nnodes": 2, "master_addr": "0.0.0.0"}, "expected one address of node 0"),
        ({"nnodes": 2, "executor": "ray"}, "processes of its own"),
    ],
)
def test_what_cannot_be_meant(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        EngineArgs("demo", **given)


def test_replicas_over_several_nodes_each_are_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="not built yet"):
        EngineArgs("demo", nnodes=4, data_parallel_size=2)


def test_an_engine_in_the_process_of_its_requests_has_no_other_nodes() -> None:
    with pytest.raises(ConfigError, match="multiprocess=True"):
        AsyncLLM("demo", nnodes=2)
