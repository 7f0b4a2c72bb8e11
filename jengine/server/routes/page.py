"""The built-in page at /: a chat in one file, which loads nothing from elsewhere.

In: page.html beside this file. Out: a response whose policy lets the browser run this script and
talk with this server, and nothing else.
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

FILE = Path(__file__).parent / "page.html"


async def page(service: Service, http: Request) -> Response:
    """The page. It asks for the API key itself, if the server wants one."""
    text, policy = _contents()
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return Response(text, media_type="text/html", headers=headers)


@cache
def _contents() -> tuple[str, str]:
    """The page and its content security policy, which names its script by digest."""
    text = FILE.read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return text, policy
