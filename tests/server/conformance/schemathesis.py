"""schemathesis: requests made from /openapi.json, right and wrong ones. None may end with a 5xx.

In: a server of the demo model, and a Python with schemathesis. A route whose feature is not built
answers 501, which is no failure of the server.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jengine.client.address import Address
from jengine.client.server import Server

EXAMPLES = 60
SECONDS = 360
NOT_BUILT = 501
HOOKS = "schemathesis_hooks"


def check(url: str, python: str) -> dict[str, Any]:
    """Requests per route and status, and those that ended with a 5xx."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "requests.ndjson"
        command = [
            str(Path(python).parent / "schemathesis"), "run", f"{url}/openapi.json", "--url", url,
            "--checks", "not_a_server_error", "--max-examples", str(EXAMPLES), "--seed", "0",
            "--continue-on-failure", "--request-timeout", "60", "--max-time", str(SECONDS),
            "--workers", "4", "--no-color", "--suppress-health-check", "all",
            "--report", "har", "--report-har-path", str(report),
        ]  # fmt: skip
        # Examples that it remembers for the next run go to the folder that it runs in, where it
        # also looks for the hooks.
        shutil.copy(Path(__file__).with_name(HOOKS + ".py"), folder)
        surroundings = {**os.environ, "SCHEMATHESIS_HOOKS": HOOKS, "PYTHONPATH": folder}
        done = subprocess.run(
            command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False
        )
        if not report.is_file():
            raise SystemExit(f"schemathesis: {(done.stdout + done.stderr)[-3000:]}")
        entries = json.loads(report.read_text())["log"]["entries"]
    known = Server(Address.of(url)).get("/openapi.json")["paths"]
    counts: dict[str, dict[str, int]] = {}
    problems = []
    for entry in entries:
        request, status = entry["request"], entry["response"]["status"]
        path = request["url"].removeprefix(url).partition("?")[0]
        route = f"{request['method']} {declared(path, known)}"
        counts.setdefault(route, {}).setdefault(str(status), 0)
        counts[route][str(status)] += 1
        if status >= 500 and status != NOT_BUILT:
            sent = request.get("postData", {}).get("text", "")[:300]
            said = entry["response"]["content"].get("text", "")[:300]
            problems.append(f"{route}: {status} {said} for {sent}")
    client = " ".join(re.findall(r"Schemathesis v\S+", done.stdout)[:1]) or "schemathesis"
    requests = sum(sum(statuses.values()) for statuses in counts.values())
    return {"client": client, "routes": counts, "requests": requests, "problems": problems}


def declared(path: str, known: Iterable[str]) -> str:
    """The path as the document declares it, with names in place of its parameters."""
    patterns = {one: re.sub(r"\\{\w+\\}", ".+", re.escape(one)) for one in known}
    # The longest first: a parameter may hold slashes.
    fitting = [one for one, pattern in patterns.items() if re.fullmatch(pattern, path)]
    return max(fitting, key=len, default=path)
