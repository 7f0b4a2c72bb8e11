"""The admin routes of sleep: /sleep, /wake_up, /is_sleeping and what requests meet meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.engine.scripted import script_of
from tests.server.serving import error_of, letters_engine, service_of, serving

ADMIN = {"Authorization": "Bearer master"}
BODY = {"prompt": "hello", "max_tokens": 5, "temperature": 0}


@pytest.fixture
def client() -> Iterator[TestClient]:
    engine = letters_engine(enable_sleep_mode=True)
    with serving(engine, admin_key=("master",)) as one:
        yield one


def told(client: TestClient, path: str) -> Any:
    response = client.post(path, headers=ADMIN)
    assert response.status_code == 200, response.text
    return response.json()


def sleeps(client: TestClient) -> bool:
    return client.get("/is_sleeping", headers=ADMIN).json()["is_sleeping"]


def asleep(client: TestClient) -> set[str]:
    return script_of(service_of(client).live.engine).asleep


def complete(client: TestClient) -> str:
    response = client.post("/v1/completions", json=BODY)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def test_requests_that_come_meanwhile_wait(client: TestClient) -> None:
    expected = complete(client)
    assert told(client, "/sleep?level=1") == {"status": "sleeping", "level": 1}
    assert sleeps(client) and asleep(client) == {"weights", "kv_cache"}
    answers: list[str] = []
    asker = threading.Thread(target=lambda: answers.append(complete(client)))
    asker.start()
    time.sleep(0.05)
    assert not answers and client.get("/health").status_code == 200
    assert error_of(client.post("/resume", headers=ADMIN), 503)["message"].startswith("kv_cache")
    path = "/wake_up?tags=weights"
    assert told(client, path) == {"status": "sleeping", "tags": ["weights"]}
    assert sleeps(client) and asleep(client) == {"kv_cache"} and not answers
    assert told(client, "/wake_up") == {"status": "awake", "tags": None}
    asker.join(60)
    assert answers == [expected] and not sleeps(client) and not asleep(client)


def test_requests_are_refused_if_that_is_asked_for(client: TestClient) -> None:
    told(client, "/sleep?new_requests=refuse")
    response = client.post("/v1/completions", json=BODY)
    assert "the engine sleeps" in error_of(response, 503)["message"]
    assert int(response.headers["Retry-After"]) > 0
    told(client, "/wake_up")
    assert complete(client)


def test_weights_that_were_dropped_are_read_again(client: TestClient) -> None:
    expected = complete(client)
    told(client, "/sleep?level=2&mode=keep")
    assert told(client, "/wake_up") == {"status": "sleeping", "tags": None}
    assert asleep(client) == {"weights"}
    assert told(client, "/reload_weights") == {"status": "reloaded"}
    assert told(client, "/wake_up")["status"] == "awake" and complete(client) == expected


def test_a_pause_alone_and_the_cache_alone(client: TestClient) -> None:
    expected = complete(client)
    told(client, "/sleep?level=0")
    assert sleeps(client) and not asleep(client)
    told(client, "/release_kv_cache_memory")
    assert asleep(client) == {"kv_cache"}
    told(client, "/wake_up?tags=kv_cache&tags=scheduling")
    assert not sleeps(client) and complete(client) == expected


@pytest.mark.parametrize(
    "query", ["level=3", "level=x", "mode=stop", "tags=cache", "new_requests=drop"]
)
def test_what_is_refused(client: TestClient, query: str) -> None:
    error_of(client.post(f"/sleep?{query}", headers=ADMIN), 400)
    assert not sleeps(client)


def test_only_administrators_of_servers_with_sleep_mode(client: TestClient) -> None:
    assert client.post("/sleep").status_code == 403
    with serving(letters_engine(), admin_key=("master",)) as other:
        assert "enable_sleep_mode" in error_of(other.post("/sleep", headers=ADMIN), 400)["message"]
