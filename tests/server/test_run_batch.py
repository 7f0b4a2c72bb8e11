"""Batch files answered without HTTP: their results, and what an interrupted run goes on from."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jengine.cli.serving import offline as transfer
from jengine.errors import ConfigError, EngineDead
from jengine.server import offline
from jengine.server.app import asked_routes
from jengine.server.batches.batch_runner import BatchFiles, BatchProgress
from jengine.server.batches.files import AT_ONCE, ResultFile, some_lines
from jengine.server.batches.route_calls import asker
from jengine.server.offline import run_batch
from jengine.server.settings import ServerSettings
from tests.server.serving import NAME, letters_engine, service_of, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def line(custom_id: Any, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    body = {"prompt": "abc", "max_tokens": 4, **body} if url == COMPLETIONS else body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def file_of(*lines: dict[str, Any] | bytes) -> bytes:
    return b"".join(
        (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines
    )


def run(
    content: bytes, output: Path, error_file: Path | None = None, **settings: Any
) -> BatchProgress:
    """A batch by a scripted engine; a setting may be of the engine."""
    longest = settings.pop("longest", 2**20)
    engine = {name: settings.pop(name) for name in ("max_num_seqs",) if name in settings}
    with ExitStack() as stack:
        files = [stack.enter_context(ResultFile(one)) for one in (output, error_file) if one]
        batch = BatchFiles(io.BytesIO(content), *files, longest=longest)
        settings = {"served_model_name": (NAME,), **settings}
        return run_batch(ServerSettings(**settings), lambda: letters_engine(**engine), batch)


def results(file: Path) -> dict[str | None, dict[str, Any]]:
    """Results by custom_id, each of which has one."""
    text = file.read_text()
    assert not text or text.endswith("\n")
    found = [json.loads(one) for one in text.splitlines()]
    by_id = {one["custom_id"]: one for one in found}
    assert len(by_id) == len(found), "one result for each line"
    return by_id


def test_answers_are_those_of_the_routes(tmp_path: Path) -> None:
    message = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    content = file_of(line("one"), line("two", CHAT, **message))
    progress = run(content, tmp_path / "out.jsonl")
    assert (progress.completed, progress.failed) == (2, 0)
    found = results(tmp_path / "out.jsonl")
    with serving() as client:
        over_http = {
            "one": client.post(COMPLETIONS, json={"prompt": "abc", "max_tokens": 4}).json(),
            "two": client.post(CHAT, json=message).json(),
        }
    for custom_id, expected in over_http.items():
        one = found[custom_id]
        assert set(one) == {"id", "custom_id", "response", "error"} and one["error"] is None
        assert one["response"]["status_code"] == 200
        body = one["response"]["body"]
        assert one["response"]["request_id"] in body["id"]
        for name in ("choices", "usage", "model", "object"):
            assert body[name] == expected[name]


BAD = {
    "not json": (b"{nonsense", "is no request"),
    "no object": (b"[1]", "is no request"),
    "not UTF-8": (b'{"custom_id": "\xff"}', "is no request"),
    "nested": (b"[" * 100_000, "is no request"),
    "no body": (b'{"custom_id": "x", "url": "/v1/completions"}', "`body`"),
    "a method": (json.dumps({**line("x"), "method": "GET"}).encode(), "expected 'POST'"),
    "a stream": (json.dumps(line("x", stream=True)).encode(), "are whole"),
    "no route": (json.dumps(line("x", "/v1/nothing")).encode(), "v1/chat/completions"),
    "an admin route": (json.dumps(line("x", "/pause")).encode(), "expected / and one of"),
    "of another kind": (json.dumps(line("x", "/v1/embeddings", input="a")).encode(), "pooling"),
    "a bad field": (json.dumps(line("x", max_tokens="many")).encode(), "max_tokens"),
    "a bad value": (json.dumps(line("x", temperature=-1)).encode(), "temperature"),
    "an unknown model": (json.dumps(line("x", model="other")).encode(), "other"),
    "too long": (json.dumps(line("x", prompt="a" * 3000)).encode(), "context length"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_its_own_error(tmp_path: Path, name: str) -> None:
    text, message = BAD[name]
    progress = run(file_of(line("a"), text, line("b")), tmp_path / "out.jsonl")
    assert (progress.completed, progress.failed) == (2, 1)
    found = results(tmp_path / "out.jsonl")
    assert found["a"]["error"] is found["b"]["error"] is None
    (bad,) = [one for one in found.values() if one["error"]]
    assert message in bad["error"]["message"] and bad["error"]["line"] == 2
    assert bad["custom_id"] == ("x" if b'"x"' in text else None)
    response = bad["response"]
    if response is not None:
        assert response["status_code"] == bad["error"]["code"] >= 400
        assert response["body"]["error"]["message"] == bad["error"]["message"]


def test_a_line_that_is_too_long_is_an_error_and_the_next_is_read(tmp_path: Path) -> None:
    content = file_of(line("a", prompt="x" * 2 * AT_ONCE), line("b"))
    run(content, tmp_path / "out.jsonl", longest=1000)
    found = results(tmp_path / "out.jsonl")
    assert set(found) == {None, "b"} and found["b"]["error"] is None


def test_failed_lines_go_to_the_error_file(tmp_path: Path) -> None:
    out, errors = tmp_path / "out.jsonl", tmp_path / "errors.jsonl"
    content = file_of(line("a"), line("b", temperature=-1), b"nonsense")
    run(content, out, errors)
    assert set(results(out)) == {"a"} and set(results(errors)) == {"b", None}
    before = out.read_bytes() + errors.read_bytes()
    assert run(content, out, errors).earlier == 3
    assert out.read_bytes() + errors.read_bytes() == before, "failed lines are done too"


def test_an_interrupted_batch_goes_on_after_its_last_whole_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out.jsonl"
    content = file_of(*[line(str(number)) for number in range(50)])
    run(content, out)
    whole = out.read_bytes().splitlines(keepends=True)
    kept = b"".join(whole[:20])
    for cut in (1, 30, len(whole[20]) - 1):
        out.write_bytes(kept + whole[20][:cut])
        with caplog.at_level("INFO", "jengine"):
            progress = run(content, out)
        assert (progress.earlier, progress.completed) == (20, 30)
        assert "goes on after 20 lines" in caplog.text
        assert out.read_bytes().startswith(kept)
        assert set(results(out)) == {str(number) for number in range(50)}


def test_another_file_is_not_written_to(tmp_path: Path) -> None:
    for content in (file_of(line("a")), json.dumps(line("a")).encode(), b"x"):
        file = tmp_path / "in.jsonl"
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="line 1 is no result"):
            ResultFile(file)
        assert file.read_bytes() == content
    with (
        ResultFile(tmp_path / "out.jsonl"),
        pytest.raises(ConfigError, match="another process"),
    ):
        ResultFile(tmp_path / "out.jsonl")


def test_a_disk_that_fails_is_not_told_as_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: ResultFile) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(ResultFile, "_read", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        ResultFile(tmp_path / "out.jsonl")


def test_lines_are_read_as_they_are_needed() -> None:
    text = b"x" * 1023 + b"\n"

    class Counting(io.BytesIO):
        read_bytes = 0

        def readline(self, size: int | None = -1) -> bytes:  # type: ignore[override]
            found = super().readline(size)
            self.read_bytes += len(found)
            return found

    file = Counting(text * 1000)
    first = some_lines(file, 10_000)
    assert file.read_bytes == sum(map(len, first)) == AT_ONCE
    assert sum(len(some_lines(file, 10_000)) for _ in range(4)) + len(first) == 1000
    assert some_lines(file, 10_000) == []


def test_the_number_of_lines_at_once_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_now, most = 0, 0

    def counting(routes: Any) -> Any:
        ask = asker(routes)

        async def counted(*given: Any) -> Any:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            try:
                return await ask(*given)
            finally:
                open_now -= 1

        return counted

    monkeypatch.setattr(offline, "asker", counting)
    run(file_of(*[line(str(number)) for number in range(40)]), tmp_path / "out", max_num_seqs=3)
    assert most == 6, "a step's requests, and as many that wait"


def test_a_full_queue_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jengine.server.batches.batch_runner.RETRY_AFTER", 0.01)
    content = file_of(*[line(str(number)) for number in range(12)], line("wide", n=3))
    run(content, tmp_path / "out", max_num_queued_reqs=2)
    found = results(tmp_path / "out")
    assert found.pop("wide")["error"]["code"] == 503, "never fits"
    assert len(found) == 12 and all(one["error"] is None for one in found.values())


def test_a_dead_engine_ends_the_batch_and_no_line_has_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0

    def failing(self: Any, row: Any) -> int:
        nonlocal steps
        steps += 1
        if steps > 60:
            raise RuntimeError("the device is gone")
        return 5

    content = file_of(*[line(str(number)) for number in range(60)])
    with monkeypatch.context() as patch:
        patch.setattr("tests.executor.scripted.ScriptedExecutor._next_token", failing)
        with pytest.raises(EngineDead):
            run(content, tmp_path / "out", max_num_seqs=4)
    done = results(tmp_path / "out")
    assert 0 < len(done) < 60 and all(one["error"] is None for one in done.values())
    run(content, tmp_path / "out")
    assert len(results(tmp_path / "out")) == 60


class Files(BaseHTTPRequestHandler):
    """Files by path: GET and PUT."""

    stored: dict[str, bytes] = {}
    refusals = 0

    def do_GET(self) -> None:
        data = self.stored[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if self.path == "/cut" else data)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if type(self).refusals:
            type(self).refusals -= 1
            self.send_error(500)
            return
        self.stored[self.path] = data
        self.send_response(201)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_files_at_addresses(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAUSE", 0.01)
    Files.stored["/in"] = Files.stored["/cut"] = b"one\ntwo\n"
    with transfer.opened(f"{address}/in", str(tmp_path)) as file:
        assert file.read() == b"one\ntwo\n"
    with pytest.raises(transfer.TransferFailed, match="4 bytes too early"):
        transfer.opened(f"{address}/cut", str(tmp_path))
    with pytest.raises(transfer.TransferFailed, match="cannot be fetched"):
        transfer.opened("http://127.0.0.1:1/in", str(tmp_path))
    url = f"{address}/out"
    kept = transfer.local_output(url, str(tmp_path))
    assert kept == transfer.local_output(url, str(tmp_path)), "an interrupted batch finds it again"
    assert kept != transfer.local_output(f"{address}/other", str(tmp_path))
    kept.write_bytes(b"results\n")
    Files.refusals = 2
    transfer.send(kept, url)
    assert Files.stored["/out"] == b"results\n"
    Files.refusals = transfer.TRIES
    with pytest.raises(transfer.TransferFailed, match="They are in"):
        transfer.send(kept, url)


def test_what_may_be_asked() -> None:
    with serving() as client:
        asked = set(asked_routes(service_of(client)))
    assert {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/score"} <= asked
    assert not {"/pause", "/tokenize", "/v1/load_lora_adapter", "/v1/batches"} & asked
