"""The built-in pages: a chat at /, and the API at /docs. Each is one self-contained file.

In: page.html and docs.html beside this file. Out: responses whose policy lets the browser run the
page's script and talk with this server, and nothing else.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from jengine.server.serving.service import Service

FOLDER = Path(__file__).parent


async def page(service: Service, http: Request) -> Response:
    """The chat page. It asks for the API key if one is needed."""
    return html("page.html")


async def docs(service: Service, http: Request) -> Response:
    """Human-readable API documentation."""
    return html("docs.html")


def html(name: str) -> Response:
    """Serve one of the packaged pages."""
    text, policy = _contents(name)
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return Response(text, media_type="text/html", headers=headers)


@cache
def _contents(name: str) -> tuple[str, str]:
    """Return a page and its Content-Security-Policy, which allows its script by digest."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return text, policy
