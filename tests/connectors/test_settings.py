"""What users may say of blocks outside of the device, and what is refused."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from jengine.assembly.block_transfers import planned_transfers, refuse_unfit
from jengine.assembly.settings.args import EngineArgs
from jengine.config import CacheConfig
from jengine.connectors.choice import scheduler_half
from jengine.connectors.settings import (
    EXTRA_KEYS,
    GIB,
    KEYS,
    FolderSettings,
    PeerSettings,
    TransferSettings,
    transfer_settings,
)
from jengine.errors import ConfigError, UnsupportedFeature
from tests.kvcache.cache_cases import make_cache

TIER = {"type": "fs", "root_dir": "/blocks", "max_bytes": 10}


def settings(connector: str, role: str = "kv_both", **extra: Any) -> TransferSettings:
    config = {
        "kv_connector": connector, "kv_role": role, "kv_connector_extra_config": extra,
        "engine_id": "me",
    }  # fmt: skip
    found = transfer_settings(None, "native", config)
    assert found is not None
    return found


def test_a_size_alone_is_the_hosts_memory() -> None:
    assert transfer_settings(None, "native", None) is None
    assert transfer_settings(0.5, "native", {}) == TransferSettings(GIB // 2)


def test_connectors_by_vllms_names() -> None:
    assert settings("OffloadingConnector", cpu_bytes_to_use=99).host_bytes == 99
    tiered = settings("OffloadingConnector", cpu_bytes_to_use=99, secondary_tiers=[TIER])
    assert tiered.folder == FolderSettings("/blocks", 10)
    shared = settings("SharedStorageConnector", "kv_producer", shared_storage_path="/shared")
    assert shared.folder == FolderSettings("/shared") and shared.host_bytes > 0
    assert (shared.saves, shared.loads) == (True, False)
    consumer = settings("ExampleConnector", "consumer", shared_storage_path="/shared")
    assert (consumer.saves, consumer.loads) == (False, True)


@pytest.mark.parametrize(
    ("size", "backend", "config", "message"),
    [
        (0, "native", None, r"kv_offloading_size=0: expected GiB"),
        (1, "lmcache", None, r"kv_offloading_backend='lmcache'.*kv_connector_module_path"),
        (None, "native", {"kv_connector": "OffloadingConnector"}, r"kv_role'\]=None: expected one"),
        (None, "native", {"kv_conector": "x"}, r"no key 'kv_conector'.*kv_connector"),
        (None, "native", {"kv_connector": "NixlConnector", "kv_role": "kv_both"}, r"built in are"),
        (
            None, "native", {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"},
            r"cpu_bytes_to_use",
        ),
        (
            None, "native", {"kv_connector": "ExampleConnector", "kv_role": "kv_both"},
            r"shared_storage_path",
        ),
        (
            1, "native",
            {
                "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {"secondary_tiers": [{"type": "obj"}]},
            },
            r"'type': 'fs'",
        ),
        (
            None, "native",
            {
                "kv_connector": "ZmqConnector", "kv_role": "kv_both", "kv_ip": ["10.0.0.1", 7],
                "kv_connector_extra_config": {"secret": "a secret of engines"},
            },
            r"kv_ip=\['10.0.0.1', 7\]: expected an address, or a list",
        ),
        (
            1, "native",
            {
                "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
                "kv_load_failure_policy": "fail",
            },
            r"always computed",
        ),
    ],
)  # fmt: skip
def test_what_is_refused_says_what_to_do(
    size: float | None, backend: str, config: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises((ConfigError, UnsupportedFeature), match=message):
        transfer_settings(size, backend, config)


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**70), st.floats(), st.text(max_size=3),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=2), st.integers()),
)  # fmt: skip
USUAL = {"secret": "a secret of engines", "cpu_bytes_to_use": 99, "shared_storage_path": "/shared"}


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(
    st.sampled_from(["OffloadingConnector", "ZmqConnector", "ExampleConnector", "Other"]),
    st.dictionaries(st.sampled_from(sorted(KEYS)), ODD, max_size=2),
    st.dictionaries(st.sampled_from(sorted(EXTRA_KEYS)), ODD, max_size=2),
    st.one_of(st.none(), ODD),
)
def test_whatever_is_given_is_taken_or_refused(
    connector: str, config: dict[str, Any], extra: dict[str, Any], size: Any
) -> None:
    usual = {
        "kv_connector": connector, "kv_role": "kv_both",
        "kv_connector_extra_config": {**USUAL, **extra},
    }  # fmt: skip
    with contextlib.suppress(ConfigError, UnsupportedFeature):
        found = transfer_settings(size, "native", {**usual, **config})
        assert found is not None and found.host_bytes > 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kv_role": ["kv_both"]}, r"kv_role'\]=\['kv_both'\]: expected one of"),
        ({"kv_connector_module_path": ""}, "module_path'.*a string that is not empty"),
        ({"kv_connector_module_path": "m", "kv_connector_extra_config": "x"}, "expected a dict"),
        ({"kv_connector_extra_config": {"secret": 5}}, "expected a text, found int"),
        ({"kv_buffer_device": "cuda"}, "through the host's memory. Use 'cpu'"),
        ({"enable_permute_local_kv": True}, "Use False, or leave it out"),
        ({"kv_port": True}, "kv_port=True"),
    ],
)
def test_values_of_other_types_are_named(config: dict[str, Any], message: str) -> None:
    usual = {"kv_connector": "ZmqConnector", "kv_role": "kv_both"}
    with pytest.raises((ConfigError, UnsupportedFeature), match=message):
        transfer_settings(None, "native", {**usual, **config})


@pytest.mark.parametrize("size", [True, "1", math.inf, math.nan, -1.0, 1e300])
def test_sizes_that_are_none_are_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="expected GiB"):
        transfer_settings(size, "native", None)


def test_vllms_own_defaults_that_mean_the_same_are_taken() -> None:
    config = {
        "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "engine_id": None,
        "kv_buffer_device": "cpu", "enable_permute_local_kv": False, "kv_port": 14579,
        "kv_connector_extra_config": {"cpu_bytes_to_use": 99}, "kv_connector_module_path": None,
        "kv_load_failure_policy": "recompute",
    }  # fmt: skip
    assert transfer_settings(None, "native", config) is not None


class OwnConnector:
    """A connector of a user's: a half for the scheduler and one for the worker."""

    @classmethod
    def scheduler_half(cls, extra: dict[str, Any], namespace: str) -> Any:
        return extra, namespace

    @classmethod
    def worker_half(cls, extra: dict[str, Any], namespace: str) -> Any:
        return None


def test_a_class_of_ones_own() -> None:
    config = {
        "kv_connector": "OwnConnector", "kv_role": "kv_both",
        "kv_connector_module_path": __name__, "kv_connector_extra_config": {"any": 1},
    }  # fmt: skip
    found = transfer_settings(None, "native", config)
    assert found is not None and found.is_far
    assert scheduler_half(found, "model") == ({"any": 1}, "model")
    missing = transfer_settings(None, "native", {**config, "kv_connector": "Missing"})
    assert missing is not None
    with pytest.raises(ConfigError, match="cannot be imported"):
        scheduler_half(missing, "model")


def test_every_process_has_an_address_and_a_port_of_its_own() -> None:
    config = {
        "kv_connector": "ZmqConnector", "kv_role": "kv_both", "kv_port": 700,
        "kv_connector_extra_config": {"secret": "a secret of engines"},
    }  # fmt: skip
    one, two = (
        transfer_settings(None, "native", {**config, "kv_ip": address})
        for address in ("10.0.0.1", ["10.0.0.1", "10.0.0.2"])
    )
    assert one is not None and one.peer is not None and two is not None and two.peer is not None
    assert [(p.host, p.port) for p in map(one.peer.of_process, (0, 1))] == [
        ("10.0.0.1", 700), ("10.0.0.1", 701),
    ]  # fmt: skip
    assert [(p.host, p.port) for p in map(two.peer.of_process, (0, 1))] == [
        ("10.0.0.1", 700), ("10.0.0.2", 701),
    ]  # fmt: skip


def test_events_without_anything_to_find_are_refused() -> None:
    args = EngineArgs("demo", kv_events_config={"enable_kv_cache_events": True})
    with pytest.raises(ConfigError, match=r"without prefix caching.*Leave it out"):
        planned_transfers(args.groups.cache, "", make_cache(enable_prefix_caching=False), 0)


class OwnKind:
    num_stages = 1
    processes = (0, 1)


@pytest.mark.parametrize(
    ("peer", "module", "message"),
    [
        ({"hosts": ("a", "b", "c")}, None, r"kv_ip=.*an address of each of the processes \(0, 1\)"),
        ({"port": 65535}, None, "the first of 2 ports"),
        (
            None,
            f"{__name__}:OwnConnector",
            r"processes \(0, 1\): each of them has a piece of a block, and the class lacks the "
            "class methods scheduler_half_of_pieces, worker_half_of_piece. Add them",
        ),
    ],
)
def test_what_several_processes_cannot_use_is_refused(
    peer: dict[str, Any] | None, module: str | None, message: str
) -> None:
    usual = PeerSettings(
        host="a", port=5, engine_id="", secret=b"", serves=True, most_bytes=1, seconds=1
    )
    settings = TransferSettings(1, peer=None if peer is None else replace(usual, **peer),
                                module=module)  # fmt: skip
    placement: Any = OwnKind()
    with pytest.raises((ConfigError, UnsupportedFeature), match=message):
        refuse_unfit(settings, CacheConfig((), 16, ()), placement)
