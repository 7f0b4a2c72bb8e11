"""/v1/files and /v1/batches: what is kept, what runs, what clients of the server notice of it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from jengine.server.app import make_app
from jengine.server.batches.batches import LEAST_URGENT, SpareSeats
from jengine.server.batches.store import Store
from jengine.server.settings import ServerSettings
from tests.server.serving import (
    NAME,
    answer_with,
    error_of,
    letters_engine,
    service_of,
    serving,
)
from tests.server.test_run_batch import CHAT, COMPLETIONS, file_of, line


def upload(client: TestClient, content: bytes, purpose: str = "batch") -> Any:
    files = {"file": ("in.jsonl", content)}
    return client.post("/v1/files", files=files, data={"purpose": purpose})


def created(client: TestClient, content: bytes, **more: Any) -> dict[str, Any]:
    """A batch of a file that is uploaded."""
    body = {
        "input_file_id": upload(client, content).json()["id"],
        "endpoint": COMPLETIONS,
        "completion_window": "24h",
        **more,
    }
    response = client.post("/v1/batches", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def ended(client: TestClient, batch: dict[str, Any], seconds: float = 30.0) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while batch["status"] in ("in_progress", "cancelling"):
        assert time.monotonic() < end, batch
        time.sleep(0.02)
        batch = client.get(f"/v1/batches/{batch['id']}").json()
    return batch


def lines_of(client: TestClient, file_id: str) -> dict[str, Any]:
    response = client.get(f"/v1/files/{file_id}/content")
    assert response.status_code == 200
    found = [json.loads(one) for one in response.text.splitlines()]
    return {one["custom_id"]: one for one in found}


def test_a_batch_from_its_file_to_its_answers(tmp_path: Path) -> None:
    content = file_of(line("a"), line("b", temperature=-1), line("c"), b"nonsense")
    with serving(batch_dir=str(tmp_path)) as client:
        file = upload(client, content).json()
        assert file["bytes"] == len(content) and file["object"] == "file"
        assert file["filename"] == "in.jsonl" and file["purpose"] == "batch"
        assert client.get(f"/v1/files/{file['id']}").json() == file
        assert client.get(f"/v1/files/{file['id']}/content").content == content
        body = {
            "input_file_id": file["id"],
            "endpoint": COMPLETIONS,
            "completion_window": "24h",
            "metadata": {"made": "here"},
        }
        batch = ended(client, client.post("/v1/batches", json=body).json())
        assert batch["status"] == "completed" and batch["metadata"] == {"made": "here"}
        assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
        answers = lines_of(client, batch["output_file_id"])
        assert set(answers) == {"a", "c"}
        assert answers["a"]["response"]["body"]["model"] == NAME
        assert set(lines_of(client, batch["error_file_id"])) == {"b", None}
        names = {one["filename"] for one in client.get("/v1/files").json()["data"]}
        assert names == {"in.jsonl", f"{batch['id']}_output.jsonl", f"{batch['id']}_error.jsonl"}
        assert client.delete(f"/v1/files/{file['id']}").json()["deleted"]
        error_of(client.get(f"/v1/files/{file['id']}"), 404)
        assert {one.suffix for one in tmp_path.iterdir()} == {"", ".json"}, "nothing is left over"


def test_they_are_off_without_a_folder() -> None:
    with serving() as client:
        error = error_of(upload(client, b"x"), 404)
        assert "--batch-dir" in error["message"]
        error_of(client.get("/v1/batches"), 404)


def test_a_line_for_another_endpoint_is_an_error(tmp_path: Path) -> None:
    with serving(batch_dir=str(tmp_path)) as client:
        chat = line("x", CHAT, messages=[{"role": "user", "content": "hi"}], max_tokens=2)
        batch = ended(client, created(client, file_of(line("a"), chat)))
        error = lines_of(client, batch["error_file_id"])["x"]["error"]
        assert "the endpoint of this batch is v1/completions" in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"endpoint": "/v1/nothing"}, "endpoint"),
        ({"endpoint": "/pause"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
    ],
)
def test_bad_batches_are_refused(tmp_path: Path, body: dict[str, Any], param: str) -> None:
    with serving(batch_dir=str(tmp_path)) as client:
        given = {"input_file_id": upload(client, b"x\n").json()["id"], "endpoint": COMPLETIONS}
        assert error_of(client.post("/v1/batches", json={**given, **body}), 400)["param"] == param


@pytest.mark.parametrize("name", ["file-0", "../secret", "file-" + "0" * 32, "batch_" + "g" * 32])
def test_an_unknown_id_reaches_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secret.json").write_text('{"id": "a", "bytes": 1, "created_at": 1}')
    with serving(batch_dir=str(tmp_path / "store")) as client:
        for path in (f"/v1/files/{name}", f"/v1/files/{name}/content", f"/v1/batches/{name}"):
            assert client.get(path.replace("../", "..%2F")).status_code == 404
        error_of(client.post("/v1/batches", json={"input_file_id": name, "endpoint": CHAT}), 404)
        assert Store(tmp_path / "store").size == 0


def test_bad_uploads_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    settings = {"batch_dir": str(tmp_path), "max_batch_file_bytes": 5000, "max_body_bytes": 1000}
    with serving(**settings) as client:
        assert error_of(upload(client, b"x", "fine-tune"), 400)["param"] == "purpose"
        error_of(client.post("/v1/files", data={"purpose": "batch"}, files={"a": b"x"}), 400)
        error_of(client.post("/v1/files", content=b"", headers={"content-type": "text/plain"}), 400)
        error_of(upload(client, b"x" * 6000), 413)
        assert list(tmp_path.iterdir()) == []
        assert upload(client, b"x" * 3000).status_code == 200, "bodies of other routes are smaller"
        error_of(client.post(COMPLETIONS, json={"prompt": "x" * 3000}), 413)
    with serving(batch_dir=str(tmp_path), max_batch_dir_bytes=1000) as client:
        assert "--max-batch-dir-bytes" in error_of(upload(client, b"x"), 503)["message"]


def test_lists_have_pages(tmp_path: Path) -> None:
    with serving(batch_dir=str(tmp_path)) as client:
        ids = {created(client, file_of(line("a")))["id"] for _ in range(5)}
        seen: list[str] = []
        page: dict[str, Any] = {"has_more": True, "last_id": None}
        while page["has_more"]:
            after = {"after": page["last_id"]} if page["last_id"] else {}
            page = client.get("/v1/batches", params={"limit": 2, **after}).json()
            seen += [one["id"] for one in page["data"]]
        assert len(seen) == 5 and set(seen) == ids
        error_of(client.get("/v1/batches?limit=0"), 400)
        assert len(client.get("/v1/files?purpose=batch").json()["data"]) == 5


def test_a_cancelled_batch_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(monkeypatch, [40], 0.002)
    with serving(batch_dir=str(tmp_path)) as client:
        batch = created(client, file_of(*[line(str(number)) for number in range(2000)]))
        while not batch["request_counts"]["completed"]:
            batch = client.get(f"/v1/batches/{batch['id']}").json()
        error_of(client.delete(f"/v1/files/{batch['input_file_id']}"), 409)
        told = client.post(f"/v1/batches/{batch['id']}/cancel").json()
        assert told["status"] == "cancelling" and told["cancelling_at"]
        batch = ended(client, told)
        assert batch["status"] == "cancelled" and batch["cancelled_at"]
        done = lines_of(client, batch["output_file_id"])
        assert 0 < len(done) == batch["request_counts"]["completed"] < 2000
        error_of(client.post(f"/v1/batches/{batch['id']}/cancel"), 409)
        assert service_of(client).open_requests == 0


def test_a_batch_goes_on_in_the_next_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 200
    with monkeypatch.context() as patch:
        answer_with(patch, [40], 0.002)
        with serving(batch_dir=str(tmp_path)) as client:
            batch = created(client, file_of(*[line(str(number)) for number in range(count)]))
            while not batch["request_counts"]["completed"]:
                batch = client.get(f"/v1/batches/{batch['id']}").json()
    with serving(batch_dir=str(tmp_path)) as client:
        again = client.get(f"/v1/batches/{batch['id']}").json()
        assert again["status"] == "in_progress" and again["request_counts"]["completed"] < count
        batches = client.app.state.batches  # type: ignore[attr-defined]
        for _ in range(2):  # the second finds that it runs
            client.portal.call(batches.resume)  # type: ignore[union-attr]
        batch = ended(client, again)
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": count, "completed": count, "failed": 0}
        assert len(lines_of(client, batch["output_file_id"])) == count


def test_a_batch_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, [40], 0.01)
    with serving(batch_dir=str(tmp_path)) as client:
        batch = created(client, file_of(*[line(str(number)) for number in range(2000)]))
        begun = time.time()
        monkeypatch.setattr("jengine.server.batches.batches.now", lambda: int(begun) + 25 * 3600)
        assert ended(client, batch)["status"] == "expired"


def test_requests_of_clients_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has at most half of the seats and the least priority."""
    answer_with(monkeypatch, [40], 0.001)
    seen: list[tuple[int, int]] = []
    engine = letters_engine(max_num_seqs=4)
    submit = engine.session.submit

    def noting(*given: Any, priority: int = 0, **more: Any) -> Any:
        names = [one.request_id for one in engine.session.open_answers]
        open_now = sum(not name.startswith("cmpl-client") for name in names)
        seen.append((priority, open_now))
        return submit(*given, priority=priority, **more)

    monkeypatch.setattr(engine.session, "submit", noting)
    with serving(engine, batch_dir=str(tmp_path)) as client:
        batch = created(client, file_of(*[line(str(number), priority=-5) for number in range(40)]))
        for number in range(5):
            headers = {"X-Request-Id": f"client{number}"}
            body = {"prompt": "abc", "max_tokens": 3}
            assert client.post(COMPLETIONS, json=body, headers=headers).status_code == 200
        assert ended(client, batch)["status"] == "completed"
    assert sorted({priority for priority, _ in seen}) == [0, LEAST_URGENT]
    assert max(count for priority, count in seen if priority) == 1, "one other of the batch's"


@pytest.mark.asyncio
async def test_no_line_begins_while_clients_fill_the_engine() -> None:
    with serving(letters_engine(max_num_seqs=4)) as client:
        service = service_of(client)
        seats = SpareSeats(service)
        ticket = service.live.admission.enter(4)
        begun = asyncio.ensure_future(seats.acquire())
        await asyncio.sleep(0.2)
        assert not begun.done()
        ticket.release()
        await begun


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="--batch-dir"):
        make_app(None, ServerSettings(batch_dir=str(tmp_path / "file")))
