"""What users may say of blocks outside of the device, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from jengine.connectors.choice import scheduler_half
from jengine.connectors.settings import GIB, FolderSettings, TransferSettings, transfer_settings
from jengine.errors import ConfigError, UnsupportedFeature

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
