"""An engine that starts takes its weights from one that runs, checksummed and authenticated."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine.assembly import peer_weights
from jengine.connectors import weight_peers
from jengine.connectors.weight_peers import ParameterInfo, WeightClient, WeightList, WeightServer
from jengine.connectors.weight_settings import WeightSettings, weight_settings
from jengine.errors import CheckpointError, ConfigError, UnsupportedFeature
from jengine.wire import question_sockets
from tests.api.engines import answers, random_prompts, tiny_engine
from tests.connectors.test_peers import free_port
from tests.models.tiny_models import write_tiny_native
from tests.weights.quantized_models import LAYOUTS, write_quantized

SECRET = "a secret of 16 bytes or more"
DATA = np.arange(1000, dtype=np.float32).reshape(10, 100)
INFO = ParameterInfo("w", "float32", (10, 100))


class Source:
    """One parameter."""

    version = 7

    def listed(self) -> WeightList:
        return WeightList(self.version, [INFO])

    def piece(self, name: str, version: int, begin: int, end: int) -> memoryview:
        if version != self.version:
            raise CheckpointError("parameters have been replaced meanwhile.")
        return memoryview(DATA.tobytes())[begin:end]


def addresses(**more: Any) -> tuple[WeightSettings, WeightSettings]:
    """Of a server and of its client."""
    where = f"127.0.0.1:{free_port()}"
    found = (
        weight_settings("auto", {"serve": where, "secret": SECRET}),
        weight_settings("peer", {"peer": where, "secret": SECRET, **more}),
    )
    assert found[0] is not None and found[1] is not None
    return found[0], found[1]


@pytest.fixture
def served() -> Iterator[tuple[Source, WeightSettings]]:
    source, (own, other) = Source(), addresses()
    server = WeightServer(own, source)
    yield source, other
    server.close()


def test_pieces_come_whole_and_in_order(
    served: tuple[Source, WeightSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_peers, "MOST_PIECE", 256)
    _, settings = served

    class Bar:
        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None: ...

        def update(self, count: int) -> None:
            shown.append(count)

    shown: list[int] = []
    declared = {"w": Declared()}
    monkeypatch.setattr(peer_weights, "named_parameters", lambda _: declared.items())
    found = list(
        peer_weights.peer_parameters(
            settings, None, lambda name, axes, array: (axes, array), lambda **_: Bar()
        )
    )  # fmt: skip
    ((name, (axes, array)),) = found
    assert (name, axes) == ("w", ("embed", None)) and shown == [4000]
    np.testing.assert_array_equal(array, DATA)


class Declared:
    shape, dtype = (10, 100), jnp.float32

    def get_metadata(self) -> dict[str, Any]:
        return {"axes": ("embed", None)}


def test_weights_that_were_replaced_are_refused(served: tuple[Source, WeightSettings]) -> None:
    source, settings = served
    with contextlib.closing(WeightClient(settings)) as client:
        listed = client.listed()
        source.version += 1
        with pytest.raises(CheckpointError, match="replaced meanwhile"):
            client.piece("w", listed.version, 0, 4)


def test_damage_is_seen(
    served: tuple[Source, WeightSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, settings = served
    monkeypatch.setattr(question_sockets, "answer_frames", damaged(question_sockets.answer_frames))
    with (
        contextlib.closing(WeightClient(settings)) as client,
        pytest.raises(CheckpointError, match="is damaged"),
    ):
        client.piece("w", 7, 0, 40)


def damaged(answer: Any) -> Any:
    def changed(*given: Any) -> list[bytes]:
        head, data = answer(*given)
        return [head, bytes([data[0] ^ 1]) + bytes(data[1:])]

    return changed


def test_what_is_no_answer_is_named(
    served: tuple[Source, WeightSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, settings = served
    monkeypatch.setattr(question_sockets, "answer_frames", lambda *_: [b"\xc1"])
    with (
        contextlib.closing(WeightClient(settings)) as client,
        pytest.raises(CheckpointError, match="sent what is no answer"),
    ):
        client.listed()


def test_parameters_that_are_deleted_meanwhile_are_refused() -> None:
    array = jnp.arange(4.0)
    loaded: Any = SimpleNamespace(leaves=(array,), parameters=lambda: {"w": array})
    source = peer_weights.ServedWeights(loaded)
    version = source.listed().version
    array.delete()
    with pytest.raises(CheckpointError, match=r"being replaced\. Start again"):
        source.piece("w", version, 0, 4)


def test_another_secret_is_not_let_in(served: tuple[Source, WeightSettings]) -> None:
    _, good = served
    assert good.peer is not None
    where = good.peer.removeprefix("tcp://")
    other = weight_settings(
        "peer", {"peer": where, "secret": SECRET[::-1], "timeout_seconds": 0.3}
    )  # fmt: skip
    assert other is not None
    with (
        contextlib.closing(WeightClient(other)) as client,
        pytest.raises(CheckpointError, match=r"did not answer within 0.3 s.*same secret"),
    ):
        client.listed()


def test_another_model_is_named() -> None:
    with pytest.raises(ConfigError, match=r"serves another model.*float32"):
        peer_weights.check_listed({}, {"w": INFO}, "tcp://peer:1")


@pytest.mark.parametrize(
    ("load_format", "config", "problem"),
    [
        ("peer", None, "Give both or neither"),
        ("auto", {"peer": "a:1", "secret": SECRET}, "Give both or neither"),
        ("peer", {"peer": "a", "secret": SECRET}, r"\['peer'\]='a': expected 'host:port'"),
        ("peer", {"peer": "a:1"}, "JENGINE_WEIGHTS_SECRET"),
        ("peer", {"peer": "a:1", "secret": SECRET, "readers": 0}, "readers"),
        ("peer", {"peer": "a:1", "secret": SECRET, "readers": True}, "readers"),
        ("peer", {"peer": "a:1", "secret": SECRET, "timeout_seconds": math.inf}, "timeout_seconds"),
        ("peer", {"peer": "a:1", "secret": 5}, "expected a text, found int"),
        ("auto", {"sever": "a:1"}, "no key 'sever'"),
    ],
)
def test_settings_that_cannot_be_meant(
    load_format: str, config: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JENGINE_WEIGHTS_SECRET", raising=False)
    with pytest.raises(ConfigError, match=problem):
        weight_settings(load_format, config)


@pytest.mark.slow
def test_an_engine_starts_from_one_that_runs(tmp_path: Path) -> None:
    """Without the weights' files; also after its parameters were replaced."""
    full = write_tiny_native(tmp_path / "full", "llama")
    bare = tmp_path / "bare"
    shutil.copytree(full, bare, ignore=shutil.ignore_patterns("*.safetensors*"))
    where, prompts = f"127.0.0.1:{free_port()}", random_prompts(20, 33)
    params = jengine.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
    serve = {"serve": where, "secret": SECRET}
    take = {"peer": where, "secret": SECRET, "readers": 3}
    with tiny_engine(full, max_model_len=256, model_loader_extra_config=serve) as runs:
        for turn in range(2):
            if turn:
                now = runs.engine.loaded.parameters()
                runs.update_params({name: value * 0.5 for name, value in now.items()})
            expected = answers(runs.generate(prompts, params))
            with tiny_engine(
                bare, max_model_len=256, load_format="peer", model_loader_extra_config=take
            ) as starts:
                assert answers(starts.generate(prompts, params)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    ["W8A16 channel", "W4A16 group, zeros", "GPTQ 4", "AWQ", "DeepSeek FP8", "FP8 of vLLM"],
)
def test_quantized_weights_travel_as_they_are(tmp_path: Path, layout: str) -> None:
    full = write_quantized(tmp_path, "llama", LAYOUTS[layout]).quantized
    bare = tmp_path / "bare"
    shutil.copytree(full, bare, ignore=shutil.ignore_patterns("*.safetensors*"))
    where, prompts = f"127.0.0.1:{free_port()}", random_prompts(20, 33)
    params = jengine.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
    serve = {"serve": where, "secret": SECRET}
    take = {"peer": where, "secret": SECRET}
    with (
        tiny_engine(full, max_model_len=128, model_loader_extra_config=serve) as runs,
        tiny_engine(
            bare, max_model_len=128, load_format="peer", model_loader_extra_config=take
        ) as starts,
    ):
        ours, theirs = (one.engine.loaded.leaves for one in (starts, runs))
        for own, other in zip(ours, theirs, strict=True):
            assert own.dtype == other.dtype
            np.testing.assert_array_equal(own, other)
        expected = answers(runs.generate(prompts, params))
        assert answers(starts.generate(prompts, params)) == expected


@pytest.mark.parametrize(("side", "load_format"), [("peer", "peer"), ("serve", "auto")])
def test_weights_rounded_at_load_are_refused(tmp_path: Path, side: str, load_format: str) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    settings = {side: f"127.0.0.1:{free_port()}", "secret": SECRET}
    with pytest.raises(UnsupportedFeature, match="rounded at load"):
        tiny_engine(
            folder, max_model_len=128, quantization="int8", load_format=load_format,
            model_loader_extra_config=settings,
        )  # fmt: skip
