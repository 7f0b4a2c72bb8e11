"""The example of a connector over NIXL, with a library that stands for it and its objects."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import jengine
from jengine.connectors.choice import refuse_without_pieces, scheduler_half, worker_half
from jengine.connectors.settings import transfer_settings

EXAMPLES = Path(__file__).parents[2] / "examples"
KEY = b"\0" * 4 + b"k" * 28
CONFIG = {
    "kv_connector": "NixlObjects", "kv_connector_module_path": "nixl_connector",
    "kv_role": "kv_both", "kv_connector_extra_config": {"store": {"bucket": "b"}},
}  # fmt: skip


class Descriptors(list):
    """A registered list."""

    kind = ""

    def trim(self) -> Descriptors:
        return self


class Agent:
    """NIXL's calls over objects in this process; a transfer is done at the second look."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.registered = 0

    def __call__(self, name: str, config: Any) -> Agent:
        return self

    def create_backend(self, name: str, parameters: dict[str, str]) -> None:
        assert (name, parameters) == ("OBJ", {"bucket": "b"})

    def query_memory(self, asked: list[Any], backend: str, kind: str) -> list[Any]:
        return [{} if name in self.objects else None for *_, name in asked]

    def register_memory(self, memory: list[Any], kind: str) -> Descriptors:
        self.registered += 1
        found = Descriptors(memory)
        found.kind = kind
        return found

    def deregister_memory(self, memory: Descriptors) -> None:
        self.registered -= 1

    def initialize_xfer(self, op: str, here: Any, there: Any, agent: str) -> list[Any]:
        assert (here.kind, there.kind, agent) == ("DRAM", "OBJ", "jengine")
        return [op, *here[0][:2], there[0][3]]

    def transfer(self, handle: list[Any]) -> str:
        op, address, size, name = handle
        if op == "READ" and len(self.objects.get(name, b"")) < size:
            return "ERR"
        if op == "READ":
            ctypes.memmove(address, self.objects[name], size)
        else:
            self.objects[name] = ctypes.string_at(address, size)
        return "PROC"

    def check_xfer_state(self, handle: list[Any]) -> str:
        return "DONE"

    def release_xfer_handle(self, handle: list[Any]) -> None:
        handle.clear()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    made = Agent({})
    library = ModuleType("nixl._api")
    library.nixl_agent = made  # type: ignore[attr-defined]
    library.nixl_agent_config = lambda backends: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nixl", ModuleType("nixl"))
    monkeypatch.setitem(sys.modules, "nixl._api", library)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return made


def test_blocks_are_kept_and_checked(agent: Agent) -> None:
    settings = transfer_settings(None, "native", CONFIG)
    assert settings is not None
    index, blocks = scheduler_half(settings, "model"), worker_half(settings, "model")
    assert index is not None and blocks is not None
    assert not index.holds(KEY, "") and blocks.read(KEY, "") is None
    blocks.write(KEY, b"content")
    assert index.holds(KEY, "") and blocks.read(KEY, "") == b"content"
    (name,) = agent.objects
    agent.objects[name] = agent.objects[name][:-1] + b"?"
    assert blocks.read(KEY, "") is None  # damaged
    blocks.write(KEY, b"content")
    index.forget(KEY)
    assert blocks.read(KEY, "") is None
    index.reset()
    assert not index.holds(KEY, "")
    assert agent.registered == 0


def test_each_process_stores_its_piece(agent: Agent) -> None:
    settings = transfer_settings(None, "native", CONFIG)
    assert settings is not None and settings.module is not None
    refuse_without_pieces(settings.module, (0, 1))
    pieces = ("-left", "-right")
    index = scheduler_half(settings, "model", pieces)
    left, right = (worker_half(settings, "model", pieces, process) for process in (0, 1))
    assert index is not None and left is not None and right is not None
    left.write(KEY, b"le")
    assert not index.holds(KEY, ""), "the right piece is missing"
    right.write(KEY, b"ft")
    assert index.holds(KEY, "")
    assert (left.read(KEY, ""), right.read(KEY, "")) == (b"le", b"ft")
    index.forget(KEY)
    assert left.read(KEY, "") is None and right.read(KEY, "") is None


@pytest.mark.slow
def test_an_engine_reads_what_another_has_written(agent: Agent) -> None:
    from tests.api.engines import SMALL_DEMO, random_prompts
    from tests.api.test_kv_offloading import answers

    (prompt,) = random_prompts(100)
    found = []
    for _ in range(2):
        with jengine.LLM("demo", **SMALL_DEMO, kv_transfer_config=CONFIG) as llm:
            found.append(answers(llm, [prompt]))
    assert found[0][0] == found[1][0]
    assert (found[0][1], found[1][1]) == ([0], [96])
