"""A small hub on this machine: the routes of the Hugging Face Hub that huggingface_hub uses.

Large files are answered by a redirect to another host name, as the hub's are. The connection can
break in the middle of them. Run as a program, it serves a folder of models for trials by hand.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

LARGE = (".safetensors", ".gguf", ".bin", "tokenizer.json")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "fedcba9876543210fedcba9876543210fedcba98"


@dataclass
class Repo:
    """A repository: its files, and who may read them."""

    files: Mapping[str, bytes]
    revisions: Mapping[str, str] = field(default_factory=lambda: {"main": COMMIT})
    token: str | None = None  # that a reader must send
    gated: bool = False

    @classmethod
    def of(cls, folder: Path) -> Repo:
        """The files of a folder."""
        found = (path for path in folder.rglob("*") if path.is_file())
        return cls({path.relative_to(folder).as_posix(): path.read_bytes() for path in found})


@dataclass
class Hub:
    """The repositories, and what was asked for."""

    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # with Range
    tokens_elsewhere: list[str] = field(default_factory=list)  # sent to the other host
    break_after: list[int] = field(default_factory=list)  # bytes, of the next large answers
    spoilt: bool = False  # large files have other bytes than their hash says
    url: str = ""
    slow: float = 0.0  # seconds for each MB
    serves_ranges: bool = True
    sent: int = 0  # bytes of large files

    def asked(self, method: str, part: str) -> list[tuple[str, str, str | None]]:
        """The requests whose path contains a part."""
        return [one for one in self.requests if one[0] == method and part in one[1]]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.hub.requests.append((self.command, url.path, self.headers.get("Range")))
        if url.path == "/api/models":
            word = parse_qs(url.query).get("search", [""])[0].lower()
            found = [{"id": name, "modelId": name} for name in self.hub.repos
                     if word in name.lower()]  # fmt: skip
            self.answer(200, json.dumps(found).encode())
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|refs|tree)(?:/(.*))?)?",
                                   url.path):  # fmt: skip
            self.api(match[1], match[2], match[3])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url.path):
            self.resolve(match[1], match[2], match[3])
        elif match := re.fullmatch(r"/large/([0-9a-f]{64})", url.path):
            self.large(match[1])
        else:
            self.answer(404, b"{}")

    def allowed(self, name: str, *, reads_files: bool) -> Repo | None:
        """The repository, or an answer that refuses it."""
        repo = self.hub.repos.get(name)
        sent = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if repo is not None and repo.gated and reads_files and sent != repo.token:
            status = 403 if sent else 401
            self.answer(status, b"{}", {"X-Error-Code": "GatedRepo",
                                        "X-Error-Message": "Access is restricted"})  # fmt: skip
        elif repo is None or (repo.token is not None and not repo.gated and sent != repo.token):
            self.answer(404 if sent else 401, b"{}", {"X-Error-Code": "RepoNotFound"})
        else:
            return repo
        return None

    def api(self, name: str, what: str | None, revision: str | None) -> None:
        repo = self.allowed(name, reads_files=False)
        if repo is None:
            return
        if what == "refs":
            branches = [{"name": one, "ref": f"refs/heads/{one}", "targetCommit": commit}
                        for one, commit in repo.revisions.items()]  # fmt: skip
            body = {"branches": branches, "tags": [], "converts": []}
            return self.answer(200, json.dumps(body).encode())
        commit = self.commit(repo, revision or "main")
        if commit is None:
            return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        siblings = []
        for path, data in repo.files.items():
            one: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": sha(data)[:40]}
            if path.endswith(LARGE):
                one["lfs"] = {"sha256": sha(data), "size": len(data), "pointerSize": 130}
            siblings.append(one)
        body = {"id": name, "modelId": name, "sha": commit, "gated": repo.gated,
                "private": False, "siblings": siblings, "tags": []}  # fmt: skip
        self.answer(200, json.dumps(body).encode())

    @staticmethod
    def commit(repo: Repo, revision: str) -> str | None:
        known = repo.revisions.values()
        return revision if revision in known else repo.revisions.get(revision)

    def resolve(self, name: str, revision: str, path: str) -> None:
        repo = self.allowed(name, reads_files=True)
        if repo is None:
            return
        commit = self.commit(repo, revision)
        if commit is None:
            return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if path not in repo.files:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound",
                                          "X-Repo-Commit": commit})  # fmt: skip
        data = repo.files[path]
        common = {"X-Repo-Commit": commit}
        if not path.endswith(LARGE):
            return self.answer(200, data, {**common, "ETag": f'"{sha(data)[:40]}"'})
        elsewhere = self.hub.url.replace("127.0.0.1", "localhost")
        self.answer(302, b"", {
            **common, "Location": f"{elsewhere}/large/{sha(data)}",
            "X-Linked-Etag": f'"{sha(data)}"', "X-Linked-Size": str(len(data)),
        })  # fmt: skip

    def large(self, digest: str) -> None:
        if token := self.headers.get("Authorization"):
            self.hub.tokens_elsewhere.append(token)
        every = (data for repo in self.hub.repos.values() for data in repo.files.values())
        data = next(one for one in every if sha(one) == digest)
        if self.hub.spoilt:
            data = bytes(len(data))
        headers = {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        status, body, given = 200, data, self.headers.get("Range")
        if given and self.hub.serves_ranges:
            first, last = given.removeprefix("bytes=").split("-")
            start, end = int(first), min(int(last or len(data)) + 1, len(data))
            status, body = 206, data[start:end]
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        self.hub.sent += len(body)
        self.answer(status, body, headers, breaks=True)

    def answer(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None, *,
        breaks: bool = False,
    ) -> None:  # fmt: skip
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if breaks and self.hub.break_after:
            self.wfile.write(body[: self.hub.break_after.pop(0)])
            self.wfile.flush()
            self.close_connection = True
            return
        for at in range(0, len(body), 1 << 20):
            if breaks and self.hub.slow:
                threading.Event().wait(self.hub.slow)
            self.wfile.write(body[at : at + (1 << 20)])


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may leave in the middle."""


@contextmanager
def serving(hub: Hub, port: int = 0) -> Iterator[Hub]:
    """The hub, while it answers."""
    handler = type("Bound", (Handler,), {"hub": hub})
    server = Server(("127.0.0.1", port), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    """Serve the folders ORG/NAME below a folder: loopback.py FOLDER PORT [SECONDS_A_MEGABYTE]"""
    top = Path(sys.argv[1])
    hub = Hub({str(path.relative_to(top)): Repo.of(path) for path in top.glob("*/*")})
    hub.slow = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    for name, repo in hub.repos.items():
        repo.gated = name.endswith("-gated")
        repo.token = "hf_secret" if name.endswith(("-gated", "-private")) else None
    with serving(hub, int(sys.argv[2])):
        threading.Event().wait()


if __name__ == "__main__":
    main()
