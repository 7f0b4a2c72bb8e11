"""Repositories to snapshots: what is asked for, what is kept, and every way that it can fail."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, file_download

from jengine.demo import model_path
from jengine.errors import CheckpointError
from jengine.hub.cache import cached_models
from jengine.hub.names import hub_name, shown_name
from jengine.hub.options import HubOptions, silent
from jengine.hub.wanted import SETTINGS, AdapterFiles, ModelFiles
from jengine.weights.resolve import resolve_model
from tests.hub.loopback import COMMIT, OLDER, Hub, Repo, sha

WEIGHTS = b"w" * 3_000_000
PLAIN = {"config.json": b"{}", "model.safetensors": WEIGHTS}


def test_only_what_is_needed_is_downloaded(hub: Hub) -> None:
    unwanted = {"pytorch_model.bin": b"x", "modeling_x.py": b"x", "README.md": b"x", "x.onnx": b"x",
                "original/consolidated.safetensors": b"x"}  # fmt: skip
    hub.repos["a/b"] = Repo({**PLAIN, "tokenizer.json": b"{}", "chat_template.jinja": b"",
                             "generation_config.json": b"{}", **unwanted})  # fmt: skip
    folder = resolve_model("a/b")
    assert folder == Path(constants.HF_HUB_CACHE) / "models--a--b" / "snapshots" / COMMIT
    assert sorted(path.name for path in folder.iterdir()) == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json",
    ]  # fmt: skip
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert shown_name(folder) == "a/b"
    assert [(one.name, one.nbytes, one.unfinished) for one in cached_models()] == [
        ("a/b", len(WEIGHTS) + 4, 0)
    ]


def test_what_is_there_costs_one_request_and_none_offline(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve_model("maker/demo")
    hub.requests.clear()
    assert resolve_model("maker/demo") == first
    assert [path for _, path, _ in hub.requests] == ["/api/models/maker/demo"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert resolve_model("maker/demo") == first
    assert hub.requests == []


def test_a_commit_is_not_asked_for_twice(hub: Hub) -> None:
    options = HubOptions(revision=COMMIT)
    first = resolve_model("maker/demo", options)
    hub.requests.clear()
    assert resolve_model("maker/demo", options) == first
    # The path that another host was told names the commit too.
    assert resolve_model(f"/elsewhere/models--maker--demo/snapshots/{COMMIT}") == first
    assert hub.requests == []


def test_another_host_downloads_the_snapshot_that_it_is_told(hub: Hub) -> None:
    folder = resolve_model(f"/elsewhere/hub/models--maker--demo/snapshots/{COMMIT}")
    assert folder.is_relative_to(constants.HF_HUB_CACHE)
    assert (folder / "model.safetensors").is_file()


def test_revisions(hub: Hub) -> None:
    hub.repos["a/b"] = Repo(PLAIN, revisions={"main": COMMIT, "older": OLDER})
    assert resolve_model("a/b", HubOptions(revision="older")).name == OLDER
    assert resolve_model("a/b").name == COMMIT
    with pytest.raises(CheckpointError, match=r"a/b: there is no revision 'oder'. Did you mean 'o"):
        resolve_model("a/b", HubOptions(revision="oder"))
    with pytest.raises(CheckpointError, match=r"no revision 'x'. There are main, older, and com"):
        resolve_model("a/b", HubOptions(revision="x"))


def test_a_folder_of_that_name_wins(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "maker" / "demo").mkdir(parents=True)
    assert resolve_model("maker/demo") == Path("maker/demo")
    assert hub.requests == []


def test_the_index_says_which_shards(hub: Hub) -> None:
    index = b'{"weight_map": {"a": "s-1.safetensors", "b": "s-2.safetensors"}}'
    files = {"config.json": b"{}", "model.safetensors.index.json": index,
             "pytorch_model.bin.index.json": b"{}", "s-1.safetensors": b"1",
             "s-2.safetensors": b"2", "s-3.safetensors": b"3"}  # fmt: skip
    hub.repos["a/b"] = Repo(files)
    found = {path.name for path in resolve_model("a/b").iterdir()}
    assert found == {*files} - {"s-3.safetensors", "pytorch_model.bin.index.json"}
    with pytest.raises(CheckpointError, match=r"a/b: .*names s-2.safetensors, which is not there"):
        resolve_model("a/b", HubOptions(ignore_patterns=("s-2*",)))


def test_small_files_alone(hub: Hub) -> None:
    folder = resolve_model("maker/demo", HubOptions(wanted=SETTINGS))
    assert (folder / "config.json").is_file()
    assert not (folder / "model.safetensors").exists()


def test_gguf_files_are_named_by_their_quantization(hub: Hub) -> None:
    hub.repos["a/b-GGUF"] = Repo({
        "b-Q4_K_M.gguf": b"4", "b-Q4_K_S.gguf": b"s", "b-mmproj-Q4_K_M.gguf": b"m",
        "b-Q8_0-00001-of-00002.gguf": b"81", "b-Q8_0-00002-of-00002.gguf": b"82",
    })  # fmt: skip
    file = resolve_model("a/b-GGUF:q4_k_m")
    assert (file.name, file.read_bytes()) == ("b-Q4_K_M.gguf", b"4")
    assert len(list(file.parent.iterdir())) == 1
    first = resolve_model("a/b-GGUF:Q8_0")
    assert first.name == "b-Q8_0-00001-of-00002.gguf"
    assert first.with_name("b-Q8_0-00002-of-00002.gguf").is_file()
    with pytest.raises(CheckpointError, match=r"3 GGUF files to choose from: .*org/name:Q4_K_M"):
        resolve_model("a/b-GGUF")
    with pytest.raises(CheckpointError, match=r"no GGUF file for 'Q5_0': found b-Q4_K_M.gguf, "):
        resolve_model("a/b-GGUF:Q5_0")


def test_orbax_is_taken_where_it_is_chosen_or_alone(hub: Hub) -> None:
    orbax = {"orbax/_METADATA": b"{}", "orbax/d/1": b"x"}
    hub.repos["a/both"] = Repo({**PLAIN, **orbax})
    hub.repos["a/orbax"] = Repo({"config.json": b"{}", **orbax})
    assert not (resolve_model("a/both") / "orbax").exists()
    chosen = HubOptions(wanted=ModelFiles(load_format="orbax"))
    assert (resolve_model("a/both", chosen) / "orbax" / "d" / "1").is_file()
    assert (resolve_model("a/orbax") / "orbax" / "_METADATA").is_file()


def test_adapters(hub: Hub) -> None:
    wanted = HubOptions(wanted=AdapterFiles())
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x", "optimizer.pt": b"x"}
    hub.repos["a/adapter"] = Repo(files)
    assert {one.name for one in resolve_model("a/adapter", wanted).iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors"}  # fmt: skip
    with pytest.raises(CheckpointError, match=r"expected an adapter with adapter_config.json, fou"):
        resolve_model("maker/demo", wanted)


def test_a_break_is_resumed_within_a_download(hub: Hub) -> None:
    hub.repos["a/b"] = Repo(PLAIN)
    hub.break_after = [1_000_000]
    assert (resolve_model("a/b") / "model.safetensors").read_bytes() == WEIGHTS
    assert [one[2] for one in hub.asked("GET", "/large/")] == [None, "bytes=1000000-"]


def test_a_download_that_ended_early_goes_on_next_time(hub: Hub) -> None:
    hub.repos["a/b"] = Repo(PLAIN)
    hub.break_after = [1_000_000, 0, 0, 0, 0, 0, 0]
    with pytest.raises(CheckpointError, match=r"a/b: the connection .* failed .* 1.0 MB of it are "
                                              r"in the cache, 1 of the files not c"):  # fmt: skip
        resolve_model("a/b")
    assert [one.unfinished for one in cached_models()] == [1_000_000]
    hub.break_after.clear()
    hub.requests.clear()
    totals: list[tuple[int, int]] = []

    def bar(**options: Any) -> Any:
        totals.append((options["initial"], options["total"]))
        return silent(**options)

    folder = resolve_model("a/b", HubOptions(bar=bar))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert [one[2] for one in hub.asked("GET", "/large/")] == ["bytes=1000000-"]
    assert totals == [(1_000_000, len(WEIGHTS))]


def test_spoilt_files_are_found_out_and_dropped(hub: Hub) -> None:
    hub.repos["a/b"] = Repo(PLAIN)
    hub.spoilt = True
    with pytest.raises(CheckpointError, match=r"model.safetensors has arrived with the sha256"):
        resolve_model("a/b")
    hub.spoilt = False
    assert (resolve_model("a/b") / "model.safetensors").read_bytes() == WEIGHTS


def test_weights_that_are_of_no_use_are_not_asked_for(hub: Hub) -> None:
    seen: list[bool] = []

    def check(folder: Path) -> None:
        seen.append((folder / "config.json").is_file())
        raise CheckpointError("of no use")

    with pytest.raises(CheckpointError, match="maker/demo: of no use"):
        resolve_model("maker/demo", HubOptions(check=check))
    assert seen == [True]
    weights = sha(hub.repos["maker/demo"].files["model.safetensors"])
    assert hub.asked("GET", weights) == []


def test_a_download_that_does_not_fit_the_disk_is_not_begun(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["a/b"] = Repo(PLAIN)
    free = shutil._ntuple_diskusage(10**8, 10**8 - 1000, 1000)  # pyrefly: ignore[missing-attribute]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(CheckpointError, match=r"3.0 MB are to be downloaded, .* 1.0 kB free. Make"):
        resolve_model("a/b")
    assert hub.asked("GET", "/large/") == []


def test_a_disk_that_fills_up_keeps_what_arrived(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["a/b"] = Repo(PLAIN)
    get = file_download.http_get

    def filling(url: str, file: Any, **options: Any) -> None:
        if "safetensors" not in url:
            return get(url, file, **options)
        file.write(WEIGHTS[:1_000_000])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file_download, "http_get", filling)
        found = r"a/b: the disk of .* is full\. 1.0 MB of it are in .* goes on from there\. Make"
        with pytest.raises(CheckpointError, match=found):
            resolve_model("a/b")
    hub.requests.clear()
    assert (resolve_model("a/b") / "model.safetensors").read_bytes() == WEIGHTS
    assert [one[2] for one in hub.asked("GET", "/large/")] == ["bytes=1000000-"]


def test_no_such_repository(hub: Hub) -> None:
    with pytest.raises(CheckpointError, match=r"no such repository, or it is private.*Did you mean "
                                              r"'maker/demo'\? No token was sent"):  # fmt: skip
        resolve_model("maler/demo")
    hub.repos["elsewhere/demo-of-others"] = hub.repos["maker/demo"]
    with pytest.raises(
        CheckpointError, match=r"search have elsewhere/demo-of-others, maker/demo\."
    ):
        resolve_model("nobody/demo")


def test_private_and_gated_repositories(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["a/private"] = Repo(PLAIN, token="hf_right")
    hub.repos["a/gated"] = Repo(PLAIN, token="hf_right", gated=True)
    for name, words in (("a/private", "or it is private"), ("a/gated", f"gated.*{hub.url}/a/gat")):
        with pytest.raises(CheckpointError, match=f"{words}.*No token was sent.*settings/tokens"):
            resolve_model(name)
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        with pytest.raises(CheckpointError, match="variable HF_TOKEN was sent") as caught:
            resolve_model(name)
        assert "hf_wrong" not in str(caught.value)
        monkeypatch.delenv("HF_TOKEN")
        options = HubOptions(token="hf_right")
        assert (resolve_model(name, options) / "model.safetensors").is_file()
        assert "hf_right" not in repr(options)
    assert hub.tokens_elsewhere == []


def test_pickles_are_refused_by_name(hub: Hub) -> None:
    hub.repos["a/b"] = Repo({"config.json": b"{}", "pytorch_model.bin": b"x"})
    with pytest.raises(CheckpointError, match=r"a/b: the weights are pickles only \(pytorch_model"):
        resolve_model("a/b")
    hub.repos["a/c"] = Repo({"README.md": b"x"})
    with pytest.raises(CheckpointError, match=r"a/c: expected model.safetensors, .*found README"):
        resolve_model("a/c")


def test_offline_and_not_cached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"a/b: is not in the cache .*`jengine pull a/b`"):
        resolve_model("a/b")
    assert hub.requests == []


def test_a_hub_that_cannot_be_reached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resolve_model("maker/demo")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert resolve_model("maker/demo") == folder
    with pytest.raises(CheckpointError, match=r"a/b: the connection to http://127.0.0.1:9 failed"):
        resolve_model("a/b")


@pytest.mark.parametrize("text", ["./a/b", "a", "a/b/c", "../b", "/a/b", "a/b.gguf", "~/a", ""])
def test_paths_are_no_names(text: str) -> None:
    assert hub_name(text) is None


def test_the_demo_is_not_asked_for(hub: Hub) -> None:
    assert resolve_model("demo") == model_path()
    assert hub.requests == []
