"""Every route: who may call it, what is told without a key, and the shape of every error."""

from __future__ import annotations

import hmac

import pytest
from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jengine.errors import ConfigError
from jengine.server.app import ENDPOINTS, make_app
from jengine.server.http import auth
from jengine.server.http.auth import Access
from jengine.server.settings import ServerSettings
from tests.server.serving import NAME, error_of, events, letters_engine, service_of, serving

KEYS = {"api_key": ("first", "second"), "admin_key": ("master",)}
PUBLIC = {
    "/", "/health", "/health/live", "/health/ready", "/ping", "/version", "/load", "/metrics",
    "/openapi.json", "/docs",
}  # fmt: skip


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_every_route_needs_a_key_unless_it_is_declared_public() -> None:
    with serving(**KEYS) as client:
        routes = [route for route in client.app.routes if isinstance(route, Route)]  # type: ignore[attr-defined]
        assert len(routes) == len(ENDPOINTS)
        for route in routes:
            method = next(iter(sorted(route.methods or {"GET"}, key=lambda name: name == "HEAD")))
            path = route.path.replace("{model_id:path}", NAME)
            response = client.request(method, path, json={})
            assert (response.status_code not in (401, 403)) == (route.path in PUBLIC), path
            assert response.status_code != 500


def test_a_path_without_a_route_needs_a_key_too() -> None:
    with serving(**KEYS) as client:
        error = error_of(client.get("/v1/nothing"), 401)
        assert error["type"] == "AuthenticationError"
        assert client.get("/v1/nothing").headers["www-authenticate"] == "Bearer"
        error_of(client.get("/v1/nothing", headers=bearer("first")), 404)


@pytest.mark.parametrize("key", ["first", "second", "master"])
def test_each_key_opens_the_api(key: str) -> None:
    with serving(**KEYS) as client:
        assert client.get("/v1/models", headers=bearer(key)).status_code == 200


@pytest.mark.parametrize("headers", [{}, bearer("third"), bearer(""), {"Authorization": "first"}])
def test_anything_else_does_not(headers: dict[str, str]) -> None:
    with serving(**KEYS) as client:
        error_of(client.get("/v1/models", headers=headers), 401)


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    plain = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return plain(one, other)

    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    assert auth.Keys(["a", "b", "c"]).has("a")
    assert len(compared) == 3 and all(len(one) == len(other) == 32 for one, other in compared)


def test_without_a_key_the_api_is_open_and_admin_routes_are_not() -> None:
    with serving() as client:
        assert client.get("/v1/models").status_code == 200
        for endpoint in ENDPOINTS:
            if endpoint.access is Access.ADMIN:
                error_of(client.request(endpoint.method, endpoint.path), 403)


def test_keys_are_never_printed() -> None:
    with serving(**KEYS) as client:
        text = repr(service_of(client).settings)
        assert "first" not in text and "master" not in text


def test_wrong_routes_and_methods() -> None:
    with serving() as client:
        assert error_of(client.get("/v2/nothing"), 404)["type"] == "NotFoundError"
        response = client.get("/v1/completions")
        error_of(response, 405)
        assert response.headers["allow"] == "POST"


def test_models() -> None:
    with serving(served_model_name=("one", "org/two")) as client:
        cards = client.get("/v1/models").json()["data"]
        assert [card["id"] for card in cards] == ["one", "org/two"]
        assert cards[0]["max_model_len"] == 1024 and cards[0]["object"] == "model"
        assert client.get("/v1/models/org/two").json() == cards[1]
        assert client.get("/v1/models/").json()["data"] == cards
        assert error_of(client.get("/v1/models/three"), 404)["param"] == "model"


def test_a_server_answers_while_its_engine_starts() -> None:
    app = make_app(None, ServerSettings())
    with TestClient(app) as client:
        app.state.service.note_progress("Compiling: 2 of 8 programs")
        response = client.get("/health")
        assert response.status_code == 503 and client.get("/health/live").status_code == 200
        assert response.json()["status"] == "starting"
        assert response.json()["progress"] == "Compiling: 2 of 8 programs"
        for path in ("/v1/models", "/v1/models/x"):
            error_of(client.get(path), 503)
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/embeddings"):
            refused = client.post(path, json={"prompt": "a"})
            assert error_of(refused, 503)["type"] == "ServiceUnavailableError"
            assert refused.headers["retry-after"]
        app.state.service.adopt(letters_engine())
        assert client.get("/health").json()["status"] == "serving"
        assert "progress" not in client.get("/health").json()
        app.state.service.shutdown()


def test_health_and_version() -> None:
    with serving() as client:
        for path in ("/health", "/health/ready", "/health/live", "/ping"):
            body = client.get(path).json()
            assert body["status"] == "serving" and body["last_step_age_s"] is None
        assert client.post("/ping").status_code == 200
        assert client.get("/load").json() == {"server_load": 0}
        assert set(client.get("/version").json()) == {"version"}


def test_new_parameters_over_http_are_refused_with_the_way_to_give_them() -> None:
    with serving(admin_key=("master",)) as client:
        error_of(client.post("/update_weights"), 403)
        response = client.post("/update_weights", headers={"Authorization": "Bearer master"})
        error = error_of(response, 501)
        assert error["type"] == "NotImplementedError" and "/reload_weights" in error["message"]


class Noted:
    """ASGI middleware of a user's."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-seen-by", b"class"))
            await send(message)

        await self.app(scope, receive, noted)


async def noted(http: Request, call_next: RequestResponseEndpoint) -> Response:
    response = await call_next(http)
    response.headers.append("x-seen-by", "function")
    return response


def test_middleware_of_a_users_is_around_all_of_the_servers_own() -> None:
    """In the order of vLLM: the last is the outermost."""
    names = (f"{__name__}:Noted", f"{__name__}.noted")
    with serving(middleware=names, api_key=("secret",)) as client:
        for path in ("/v1/models", "/health"):
            response = client.get(path)
            assert response.headers.get_list("x-seen-by") == ["class", "function"]
        assert client.get("/v1/models").status_code == 401
        body = {"prompt": "hello", "max_tokens": 3, "stream": True}
        key = {"Authorization": "Bearer secret"}
        assert events(client.post("/v1/completions", json=body, headers=key))


@pytest.mark.parametrize(
    ("path", "said"),
    [("nowhere.at.All", "No module named 'nowhere'"), ("json:dumps", "is a function: expected"),
     ("", "cannot be imported"), ("json", "cannot be imported")],
)  # fmt: skip
def test_middleware_that_is_none(path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said), serving(middleware=(path,)):
        pass
