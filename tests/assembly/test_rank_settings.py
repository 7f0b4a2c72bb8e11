"""Cores of data-parallel ranks on one host: no two of them want the same port."""

from __future__ import annotations

from typing import Any

from jengine.assembly.processes.deployment import rank_settings
from jengine.assembly.settings.args import EngineArgs
from jengine.connectors.choice import scheduler_half, worker_half
from jengine.connectors.kv_events import event_settings
from jengine.connectors.peers import PeerStore
from jengine.connectors.settings import transfer_settings
from tests.connectors.test_peers import two_free_ports
from tests.scheduler.scheduler_loop import make_wire

SECRET = "a secret of engines"
EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://*:5557"}
TRANSFER: dict[str, Any] = {
    "kv_connector": "ZmqConnector", "kv_role": "kv_both", "kv_port": 700, "engine_id": "me",
    "kv_connector_extra_config": {"secret": SECRET},
}  # fmt: skip


def test_ranks_have_ports_and_names_of_their_own() -> None:
    args = EngineArgs(
        "demo", data_parallel_size=2, data_parallel_backend="process",
        kv_events_config=EVENTS, kv_transfer_config=TRANSFER,
        model_loader_extra_config={"serve": "127.0.0.1:800", "secret": SECRET},
    )  # fmt: skip
    assert rank_settings(vars(args), 0) == {"data_parallel_size": None}
    second = rank_settings(vars(args), 1)
    events = event_settings(second["kv_events_config"])
    assert events is not None and events.data_parallel_rank == 1
    config = second["kv_transfer_config"]
    assert (config["kv_port"], config["engine_id"]) == (701, "me_dp1")
    assert second["model_loader_extra_config"] is None, "the first rank serves the weights"


def test_a_rank_that_serves_no_weights_still_takes_them() -> None:
    taken = {"peer": "127.0.0.1:900", "serve": "127.0.0.1:800", "secret": SECRET}
    args = EngineArgs("demo", data_parallel_size=2, data_parallel_backend="process",
                      load_format="peer", model_loader_extra_config=taken)  # fmt: skip
    kept = rank_settings(vars(args), 1)["model_loader_extra_config"]
    assert kept == {"peer": "127.0.0.1:900", "secret": SECRET}


def test_replicas_of_one_process_serve_side_by_side() -> None:
    config = {**TRANSFER, "kv_port": two_free_ports()}
    settings = transfer_settings(None, "native", config)
    assert settings is not None
    stores = []
    try:
        for replica in range(2):
            own = settings.of_replica(replica, processes=1)
            stores.append(worker_half(own, "model"))
            half = scheduler_half(own, "model")
            assert half is not None
            said = half.finished(make_wire(3, kv_transfer={"do_remote_decode": True}), 3)
            assert said["remote_port"] == config["kv_port"] + replica
        assert all(isinstance(store, PeerStore) for store in stores)
    finally:
        for store in stores:
            assert store is not None
            store.close()
