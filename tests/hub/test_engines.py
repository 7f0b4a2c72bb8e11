"""Engines of repositories: what is found for their settings, what is refused before it is
downloaded, and that what was not named is never asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

import jengine
from jengine.assembly.located import adapter_finder, checked_elsewhere, located
from jengine.assembly.preflight import checked_here
from jengine.assembly.settings.args import EngineArgs
from jengine.cli.main import main
from jengine.demo import eagle_path, model_path
from jengine.errors import CapacityError, CheckpointError
from jengine.hub.wanted import SmallFiles
from jengine.server.errors import ApiError
from jengine.server.serving.adapter_folders import adapter_folder, allowed_folders
from tests.api.engines import SMALL_DEMO
from tests.hub.loopback import COMMIT, OLDER, Hub, Repo
from tests.multihost.launch import free_port
from tests.weights.gguf.test_alone import write_model

NO_CONNECTION = """
import sys

def refused(event, given):
    # To this machine's own processes only, and by no name.
    if event == "socket.getaddrinfo" and given[0] not in (None, "localhost", "127.0.0.1", "::1"):
        raise AssertionError(f"looks up {given}")
    if event == "socket.connect" and given[1][0] not in ("127.0.0.1", "::1"):
        raise AssertionError(f"connects to {given}")

sys.addaudithook(refused)
"""


def unchecked(folder: Path) -> None:
    """A check that refuses nothing."""


def changed(**values: object) -> Repo:
    """The demo model with other entries of config.json."""
    files = dict(Repo.of(model_path()).files)
    files["config.json"] = json.dumps({**json.loads(files["config.json"]), **values}).encode()
    return Repo(files)


@pytest.mark.slow
def test_an_engine_of_a_repository(hub: Hub) -> None:
    with jengine.LLM("maker/demo", **SMALL_DEMO) as llm, jengine.LLM("demo", **SMALL_DEMO) as own:
        params = jengine.SamplingParams(temperature=0, max_tokens=4)
        one, other = (each.generate(["Once"], params)[0] for each in (llm, own))
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert llm.engine.folder == Path(constants.HF_HUB_CACHE, "models--maker--demo", "snapshots",
                                         COMMIT)  # fmt: skip
    assert [path for _, path, _ in hub.requests].count("/api/models/maker/demo") == 1


@pytest.mark.slow
def test_an_engine_of_a_repository_with_orbax_or_gguf(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = model_path()
    with jengine.LLM(small, **SMALL_DEMO) as llm:
        llm.save(tmp_path / "orbax", "orbax")
    gguf = write_model(tmp_path / "gguf")
    hub.repos["maker/orbax"] = Repo.of(tmp_path / "orbax")
    hub.repos["maker/quants"] = Repo({
        "quants/m-Q4_0.gguf": b"x", "quants/m-F32.gguf": gguf.read_bytes(), "README.md": b"#",
    })  # fmt: skip
    assert not any(path.endswith(".safetensors") for path in hub.repos["maker/orbax"].files)
    params = jengine.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)

    def answer(model: str | Path) -> list[int]:
        with jengine.LLM(model, **SMALL_DEMO) as llm:
            return list(llm.generate(["Once"], params)[0].outputs[0].token_ids)

    pairs = {"maker/orbax": small, "maker/quants:F32": gguf}
    answers = {name: answer(name) for name in pairs}
    assert answers == {name: answer(own) for name, own in pairs.items()}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.requests)
    assert {name: answer(name) for name in pairs} == answers
    assert len(hub.requests) == asked


def test_everything_that_settings_name_is_found_once(hub: Hub) -> None:
    hub.repos["maker/demo-eagle"] = Repo.of(eagle_path())
    hub.repos["maker/words"] = Repo(Repo.of(model_path()).files, {"main": COMMIT, "old": OLDER})
    draft = {"model": "maker/demo-eagle", "num_speculative_tokens": 2, "revision": COMMIT}
    given = EngineArgs("maker/demo", tokenizer="maker/words", tokenizer_revision="old",
                       speculative_config=draft, hf_token="hf_right")  # fmt: skip
    args = located(given, unchecked)
    found = args.speculative_config or {}
    assert (Path(args.model) / "model.safetensors").is_file()
    assert Path(args.tokenizer).name == OLDER
    assert not (Path(args.tokenizer) / "model.safetensors").exists()
    assert (Path(found["model"]) / "model.safetensors").is_file()
    assert (found["method"], "revision" in found) == ("eagle", False)
    asked = len(hub.requests)
    assert located(args, unchecked) == args
    assert len(hub.requests) == asked
    assert "hf_right" not in repr(args)


def test_what_ships_with_jengine_is_not_asked_for(hub: Hub) -> None:
    draft = {"model": "demo-eagle", "num_speculative_tokens": 2}
    args = EngineArgs("demo", tokenizer="demo", speculative_config=draft)
    assert located(args, unchecked) is args
    assert hub.requests == []


def test_a_tokenizer_of_another_revision(hub: Hub) -> None:
    hub.repos["a/b"] = Repo(Repo.of(model_path()).files, {"main": COMMIT, "old": OLDER})
    args = located(EngineArgs("a/b", tokenizer_revision="old"), unchecked)
    assert (Path(args.model).name, Path(args.tokenizer).name) == (COMMIT, OLDER)


def test_adapters_are_found_for_users_and_not_for_clients(hub: Hub) -> None:
    hub.repos["a/lora"] = Repo({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"})
    find = adapter_finder(EngineArgs("demo").hub)
    assert (Path(find("a/lora")) / "adapter_model.safetensors").read_bytes() == b"x"
    for path in ("/some/folder", f"/adapters/models--a--lora/snapshots/{OLDER}"):
        assert find(path) == path
    assert allowed_folders((), ["x=a/lora", "y=/adapters/sql"]) == [Path("/adapters")]
    with pytest.raises(ApiError, match="expected a folder below"):
        adapter_folder([Path("/adapters")], "a/lora")


def test_a_model_that_is_not_supported_is_refused_by_its_config(hub: Hub) -> None:
    hub.repos["a/odd"] = changed(architectures=["OddForCausalLM"])
    args = EngineArgs("a/odd")
    with pytest.raises(CheckpointError, match=r"a/odd: config.json: architecture 'OddFor"):
        located(args, checked_here(args.groups))
    assert sum("/large/" in path for _, path, _ in hub.requests) == 1  # tokenizer.json


def test_a_model_that_does_not_fit_is_refused_by_its_config(hub: Hub) -> None:
    hub.repos["a/huge"] = changed(hidden_size=65536, intermediate_size=2**20)
    args = EngineArgs("a/huge")
    refused = (
        r"a/huge: its weights take .* GB as bfloat16, and .* smaller model, quantization='int4'"
    )
    with pytest.raises(CapacityError, match=refused):
        located(args, checked_here(args.groups))
    assert sum("/large/" in path for _, path, _ in hub.requests) == 1


@pytest.mark.slow
def test_a_front_without_jax_has_the_check_made_elsewhere(hub: Hub) -> None:
    hub.repos["a/odd"] = changed(architectures=["OddForCausalLM"])
    odd, demo = EngineArgs("a/odd"), EngineArgs("maker/demo")
    with pytest.raises(CheckpointError, match="architecture 'OddForCausalLM' is not supported"):
        located(odd, checked_elsewhere(odd))
    assert (Path(located(demo, checked_elsewhere(demo)).model) / "config.json").exists()


def test_pull_and_models(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "maker/demo", "--any"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[-1].startswith("Downloading maker/demo: 100%")  # without a terminal
    folder = Path(out.strip())
    assert (folder / "model.safetensors").is_file()
    assert main(["models"]) == 0
    assert "maker/demo  4.5 MB\n1 models in " in capsys.readouterr().out
    assert main(["models", "cached", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["folder"] == str(folder)
    assert main(["pull", "./maker"]) == 1
    assert "expected the name of a repository" in capsys.readouterr().err


def test_doctor_shows_no_token_and_asks_nobody(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from jengine.cli.checks import hub as checks

    texts = [one.text for one in checks.check()]
    assert hub.url in texts[0] and "none: public models" in texts[2]
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    texts = [one.text for one in checks.check()]
    assert "variable HF_TOKEN" in texts[2] and "hf_secret" not in str(texts)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert checks.check()[0].level == "note"
    assert hub.requests == []


def test_plan_asks_for_config_json_alone(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "maker/demo", "--batch", "1"]) == 0
    assert {path.rsplit("/")[-1] for _, path, _ in hub.requests} == {"demo", "config.json"}


def outside() -> dict[str, str]:
    """Variables of a user's shell, in which nothing forbids requests."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return {name: value for name, value in os.environ.items() if name not in names}


@pytest.mark.parametrize(
    "words",
    [pytest.param(["demo"], marks=pytest.mark.slow), ["serve", "--help"], ["models"], ["pull"]],
    ids=" ".join,
)
def test_commands_that_name_no_repository_make_no_connection(words: list[str]) -> None:
    program = f"{NO_CONNECTION}\nfrom jengine.cli.main import main\nsys.exit(main({words!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**outside(), "HF_ENDPOINT": "http://hub.invalid"}, timeout=200,
    )  # fmt: skip
    assert done.returncode == (2 if words == ["pull"] else 0), done.stderr
    assert "AssertionError" not in done.stderr


@pytest.mark.slow
def test_a_server_of_the_demo_asks_no_hub(hub: Hub) -> None:
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "jengine", "serve", "demo", "--port", str(port), "--enforce-eager"],
        env={**outside(), "HF_ENDPOINT": hub.url}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stderr is not None
        # It says where it is reached once it answers.
        assert any(f":{port}/v1" in line for line in server.stderr)
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert hub.requests == []


def test_small_files_of_other_frameworks_are_left() -> None:
    paths = ["config.json", "tf_model.h5", "x/config.json", "1_Pooling/config.json", "a.py"]
    assert SmallFiles().small(paths) == ["config.json", "1_Pooling/config.json"]
