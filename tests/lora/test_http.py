"""Adapters over HTTP: each is a model, from flags or from admin routes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from jengine.adapters import adapter_modules
from jengine.errors import ConfigError
from jengine.sampling_params import SamplingParams
from jengine.server.errors import ApiError
from jengine.server.serving.adapter_folders import adapter_folder, allowed_folders
from tests.api.engines import tiny_engine
from tests.lora.engines import PROMPTS, SETTINGS, Expected, Models
from tests.server.serving import error_of, letters, service_of, serving

ADMIN = {"Authorization": "Bearer master"}


@pytest.fixture(scope="module")
def client(models: Models) -> Iterator[TestClient]:
    llm = tiny_engine(models.base, tokenizer=letters(), **SETTINGS)
    given = (f"all={models.adapters['all'].lora_path}",)
    with serving(
        llm.engine, admin_key=("master",), served_model_name=("base",), lora_modules=given
    ) as one:
        yield one


def complete(client: TestClient, model: str | None) -> dict[str, Any]:
    body = {
        "prompt": PROMPTS[1], "max_tokens": 6, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, "model": model,
    }  # fmt: skip
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def post(client: TestClient, path: str, **body: Any) -> Any:
    return client.post(f"/v1/{path}_lora_adapter", json=body, headers=ADMIN)


def check_answer(client: TestClient, model: str, name: str | None, expected: Expected) -> None:
    answer = complete(client, model)
    assert answer["model"] == model
    assert answer["choices"][0]["token_ids"] == expected[name][1].outputs[0].token_ids


@pytest.mark.slow
def test_an_adapter_is_a_model(client: TestClient, models: Models, expected: Expected) -> None:
    check_answer(client, "all", "all", expected)
    check_answer(client, "base", None, expected)
    cards = client.get("/v1/models").json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("base", None), ("all", "base")]
    assert cards[1]["root"] == models.adapters["all"].lora_path
    assert client.get("/v1/models/all").json() == cards[1]
    assert "base, all" in error_of(client.get("/v1/models/other"), 404)["message"]


def test_adapters_come_and_go(client: TestClient, models: Models, expected: Expected) -> None:
    folder = models.adapters["queries"].lora_path
    loaded = post(client, "load", lora_name="mine", lora_path=folder)
    assert loaded.text == "Success: LoRA adapter 'mine' added successfully."
    check_answer(client, "mine", "queries", expected)
    again = post(client, "load", lora_name="mine", lora_path=folder)
    assert "has already been loaded" in error_of(again, 400)["message"]
    other = models.adapters["mlp"].lora_path
    assert post(client, "load", lora_name="mine", lora_path=other, load_inplace=True).is_success
    check_answer(client, "mine", "mlp", expected)
    gone = post(client, "unload", lora_name="mine")
    assert gone.text == "Success: LoRA adapter 'mine' removed successfully."
    error_of(post(client, "unload", lora_name="mine"), 404)
    assert client.post("/v1/completions", json={"prompt": "a", "model": "mine"}).status_code == 404


def test_what_cannot_be_loaded_is_refused(
    client: TestClient, models: Models, expected: Expected
) -> None:
    beside = f"{Path(models.adapters['all'].lora_path).parent}/none"
    missing = error_of(post(client, "load", lora_name="x", lora_path=beside), 400)
    assert "LoRA adapter 'x'" in missing["message"]
    elsewhere = error_of(post(client, "load", lora_name="x", lora_path="/etc"), 400)
    assert "--lora-dirs" in elsewhere["message"] and elsewhere["param"] == "lora_path"
    taken = error_of(post(client, "load", lora_name="base", lora_path=beside), 400)
    assert "conflicts with a served base model" in taken["message"]
    error_of(post(client, "load", lora_name="x"), 400)
    error_of(client.post("/v1/load_lora_adapter", json={}), 403)
    check_answer(client, "all", "all", expected)


def test_the_adapters_of_open_requests_are_a_metric(client: TestClient, models: Models) -> None:
    session = service_of(client).live.engine.session
    name = 'jengine:lora_requests_info{max_lora="2",'
    idle = f'{name}running_lora_adapters="",waiting_lora_adapters=""}}'
    assert idle in client.get("/metrics").text
    params = SamplingParams(max_tokens=4)
    answer = session.submit(PROMPTS[0], params, lora_request=models.adapters["mlp"])
    waits = f'{name}running_lora_adapters="",waiting_lora_adapters="mlp"}}'
    assert waits in client.get("/metrics").text
    session.discard(answer)
    assert idle in client.get("/metrics").text


def test_only_what_is_below_allowed_folders_is_loaded(tmp_path: Path) -> None:
    allowed, secret = tmp_path / "adapters", tmp_path / "secret"
    for folder in (allowed / "sql", secret):
        folder.mkdir(parents=True)
    (allowed / "link").symlink_to(secret)
    places = allowed_folders((str(tmp_path / "none"), str(allowed)), ())
    assert adapter_folder(places, "sql") == str(allowed / "sql")
    assert adapter_folder(places, str(allowed / "new")) == str(allowed / "new")
    for bad in (str(secret), "../secret", "link", str(allowed / "link"), "no", "/", "a\0b"):
        with pytest.raises(ApiError, match="lora-dirs") as refused:
            adapter_folder(places, bad)
        assert str(tmp_path) not in str(refused.value)
    assert allowed_folders((), ("a=/x/a", "b=/y/b")) == [Path("/x"), Path("/y")]
    with pytest.raises(ApiError):
        adapter_folder([], "/x/a")


def test_modules_are_pairs_or_json() -> None:
    given = adapter_modules(["a=/x/y=z", '{"name": "b", "path": "/b", "base_model_name": "c"}'])
    assert [(one.lora_name, one.lora_path, one.lora_int_id) for one in given] == [
        ("a", "/x/y=z", 1), ("b", "/b", 2),
    ]  # fmt: skip
    assert given[1].base_model_name == "c"
    for bad in ("a", "=x", '{"name": "b"}', "{"):
        with pytest.raises(ConfigError, match="--lora-modules"):
            adapter_modules([bad])
    with pytest.raises(ConfigError, match="two adapters named 'a'"):
        adapter_modules(["a=/x", "a=/y"])
