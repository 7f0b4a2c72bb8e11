"""Repositories of GGUF files: refused by their headers before the weights are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jengine.assembly import preflight
from jengine.assembly.located import checked_elsewhere, located
from jengine.assembly.preflight import checked_here
from jengine.assembly.settings.args import EngineArgs
from jengine.errors import CapacityError, CheckpointError
from jengine.hub import snapshot
from jengine.weights.gguf.blocks import plain_array
from jengine.weights.gguf.header import has_header, read_header
from tests.hub.loopback import Hub, Repo
from tests.weights.gguf.gguf_models import plain, text, write_gguf
from tests.weights.gguf.test_alone import write_model

PIECES = ["bytes=0-1023", "bytes=1024-2047", "bytes=2048-4095", "bytes=4096-8191",
          "bytes=8192-16383"]  # fmt: skip


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A file whose header is longer than several first pieces."""
    monkeypatch.setattr(snapshot, "FIRST", 1 << 10)
    return write_model(tmp_path).read_bytes()


def opened(model: str, **settings: Any) -> Path:
    args = EngineArgs(model, **settings)
    return Path(located(args, checked_here(args.groups)).model)


def ranges(hub: Hub) -> list[str | None]:
    return [given for _, _, given in hub.asked("GET", "/large/")]


def cached(hub: Hub) -> list[str]:
    from huggingface_hub import constants

    return [path.name for path in Path(constants.HF_HUB_CACHE).rglob("*") if path.is_file()]


@pytest.mark.parametrize("settings", [{}, {"model_impl": "generic"}], ids=["auto", "generic"])
def test_an_architecture_is_refused_by_the_header(
    hub: Hub, model: bytes, settings: dict[str, Any]
) -> None:
    hub.repos["a/odd"] = Repo({"q/m-F32.gguf": model.replace(text("llama"), text("other"))})
    with pytest.raises(CheckpointError, match=r"^a/odd: m-F32.gguf: general.architecture is 'oth"):
        opened("a/odd", **settings)
    assert ranges(hub) == PIECES
    assert hub.sent == 1 << 14 < len(model)
    assert cached(hub) == []


def test_a_splitting_is_refused_unless_another_tokenizer_is_given(hub: Hub, model: bytes) -> None:
    odd = model.replace(text("qwen2"), text("other"))
    hub.repos["a/odd"] = Repo({"m.gguf": odd})
    with pytest.raises(CheckpointError, match=r"a/odd: m.gguf: its texts are split as 'other'"):
        opened("a/odd")
    assert hub.sent == 1 << 14
    assert opened("a/odd", tokenizer="demo").read_bytes() == odd


def test_what_does_not_fit_the_memory_is_refused_by_the_header(
    hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["a/big"] = Repo({"m.gguf": model})
    needed: list[int] = []
    count = preflight.parameter_bytes
    monkeypatch.setattr(
        preflight, "parameter_bytes", lambda config: needed.append(count(config)) or needed[-1]
    )
    room = [0]
    monkeypatch.setattr(preflight, "available_bytes", lambda *_: room[0])
    with pytest.raises(CapacityError, match=r"^a/big: its weights take .* as float32, and there"):
        opened("a/big")
    assert hub.sent == 1 << 14
    room[0] = needed[0]
    assert opened("a/big").read_bytes() == model
    with pytest.raises(CapacityError):  # as many bytes in half of the precision are too few
        room[0] //= 4
        opened("a/big", dtype="bfloat16", download_dir="elsewhere")


def test_what_fits_is_downloaded_whatever_config_lies_beside_it(hub: Hub, model: bytes) -> None:
    hub.repos["a/fits"] = Repo(
        {"m.gguf": model, "config.json": b'{"model_type": "llama"}'}, token="hf_right"
    )
    file = opened("a/fits", hf_token="hf_right")
    assert hub.tokens_elsewhere == []
    assert file.read_bytes() == model
    assert ranges(hub) == [*PIECES, None]
    assert hub.sent == (1 << 14) + len(model)
    opened("a/fits", hf_token="hf_right")
    assert hub.sent == (1 << 14) + len(model)


@pytest.mark.parametrize("why", ["no ranges", "too long"])
def test_without_a_header_nothing_is_checked(
    hub: Hub, model: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = model.replace(text("llama"), text("other"))
    hub.repos["a/odd"] = Repo({"m.gguf": odd})
    hub.serves_ranges = why != "no ranges"
    monkeypatch.setattr(snapshot, "MOST", 1 << 12)
    assert opened("a/odd").read_bytes() == odd
    tried = ["bytes=0-1023"] if why == "no ranges" else PIECES[:3]
    assert ranges(hub) == [*tried, None]


def test_headers_of_all_parts_are_read(hub: Hub, model: bytes, tmp_path: Path) -> None:
    header = read_header(tmp_path / "model.gguf")
    lists = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
    first = {**header.metadata, **{key: [*header.metadata[key]] for key in lists}}
    packed = {name: plain("F32", plain_array(one)) for name, one in header.tensors.items()}
    files = {}
    for number, metadata in enumerate((first, {})):
        part = tmp_path / f"m-{number + 1:05d}-of-00002.gguf"
        counts = {"split.no": number, "split.count": 2, "split.tensors.count": len(packed)}
        write_gguf(part, {**metadata, **counts}, dict([*packed.items()][number::2]))
        files[f"quants/{part.name}"] = part.read_bytes()
    hub.repos["a/parts"] = Repo(files)
    assert opened("a/parts").name == "m-00001-of-00002.gguf"
    assert ranges(hub) == [*PIECES, *PIECES[:1], None, None]
    odd = {path: data.replace(b"blk.0.attn_v", b"blk.0.attn_w") for path, data in files.items()}
    hub.repos["a/odd"] = Repo(odd)
    with pytest.raises(CheckpointError, match=r"^a/odd: m-00001-of-00002.gguf: .*attn_w"):
        opened("a/odd")


@pytest.mark.slow
def test_a_front_without_jax_has_the_header_checked_elsewhere(hub: Hub, model: bytes) -> None:
    hub.repos["a/odd"] = Repo({"m.gguf": model.replace(text("llama"), text("other"))})
    args = EngineArgs("a/odd")
    with pytest.raises(CheckpointError, match=r"^a/odd: m.gguf: general.architecture is 'other'"):
        located(args, checked_elsewhere(args))


def test_a_header_that_has_not_arrived_is_no_damage(model: bytes, tmp_path: Path) -> None:
    file, cut = tmp_path / "model.gguf", tmp_path / "cut.gguf"
    end = min(one.start for one in read_header(file).tensors.values())
    for arrived in (0, 1, 4, *range(5, end - 32, 37)):
        cut.write_bytes(model[:arrived] + bytes(len(model) - arrived))
        assert not has_header(cut, arrived)
    cut.write_bytes(model[:end] + bytes(len(model) - end))
    assert has_header(cut, end)
