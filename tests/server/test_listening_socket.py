"""The socket of a server: a port, a Unix socket, TLS, and what is told when it cannot be had."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from jengine.errors import ConfigError
from jengine.server.app import make_app
from jengine.server.http.listening import listening_socket, url_of
from jengine.server.run import DrainingServer, uvicorn_config
from jengine.server.settings import ServerSettings
from tests.server.serving import letters_engine


async def health_over(settings: ServerSettings, sock: socket.socket, **how: object) -> bytes:
    """The answer to GET /health of a whole server on this socket."""
    app = make_app(letters_engine(), settings)
    config = uvicorn_config(app, settings)
    config.load()
    server = DrainingServer(config, app.state.service, sock)
    serving = asyncio.ensure_future(server._serve([sock]))
    while not server.started:
        await asyncio.sleep(0.01)
    if settings.uds is not None:
        reader, writer = await asyncio.open_unix_connection(settings.uds)
    else:
        reader, writer = await asyncio.open_connection(*sock.getsockname()[:2], **how)  # type: ignore[arg-type]
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    server.should_exit = True
    await serving
    app.state.service.shutdown()
    return answer


def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    settings = ServerSettings(uds=path)
    listening_socket(settings).close()  # what an earlier server left is replaced
    sock = listening_socket(settings)
    assert url_of(settings, sock) == f"unix:{path}"
    assert b"200 OK" in asyncio.run(health_over(settings, sock))
    with pytest.raises(ConfigError, match="--uds"):
        listening_socket(ServerSettings(uds=str(tmp_path / "no" / "such")))
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ConfigError, match="--uds"):
        listening_socket(ServerSettings(uds=str(tmp_path / "file")))
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_tls(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", key, "-out", certificate], check=True, capture_output=True,
    )  # fmt: skip
    settings = ServerSettings(port=0, ssl_keyfile=key, ssl_certfile=certificate)
    sock = listening_socket(settings)
    assert url_of(settings, sock).startswith("https://127.0.0.1:")
    trust = ssl.create_default_context(cafile=certificate)
    answer = asyncio.run(health_over(settings, sock, ssl=trust, server_hostname="localhost"))
    assert b"200 OK" in answer


def test_a_port_that_is_none() -> None:
    with pytest.raises(ConfigError, match="Choose another --port"):
        listening_socket(ServerSettings(port=70_000))
