"""A server, and the `openai` client that calls it: pip install openai.

In real use the server runs on its own (`jengine serve MODEL`); here it is started and stopped.
"""

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import openai


@contextmanager
def served(*flags: str) -> Iterator[str]:
    """The URL of `jengine serve demo`, once it is ready; the server drains and ends afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jengine", "serve", "demo", "--port", str(port), *flags]
    server = subprocess.Popen([*command, "--disable-uvicorn-access-log"])
    url = f"http://127.0.0.1:{port}"
    try:
        while not is_ready(url):
            if server.poll() is not None:
                raise SystemExit(f"the server ended with status {server.returncode}")
            time.sleep(0.2)
        yield url
    finally:
        server.send_signal(signal.SIGTERM)  # open requests are finished first
        server.wait()


def is_ready(url: str) -> bool:
    """Whether requests are answered: 503 while the model is loaded and compiled."""
    try:
        with urllib.request.urlopen(f"{url}/health/ready") as response:
            return response.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def main() -> None:
    with served("--max-num-seqs", "4", "--max-model-len", "512") as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none is wanted here")
        model = client.models.list().data[0].id
        messages = [{"role": "user", "content": "What is 23 + 45?"}]
        answer = client.chat.completions.create(model=model, messages=messages, temperature=0)
        print(answer.choices[0].message.content)

        stream = client.completions.create(
            model=model, prompt="Once upon a time", max_tokens=48, temperature=0, stream=True
        )
        for chunk in stream:
            print(chunk.choices[0].text, end="", flush=True)
        print()

        try:
            client.completions.create(model=model, prompt="word " * 5000)
        except openai.BadRequestError as error:
            print(f"refused: {error.body['message']}")


if __name__ == "__main__":
    main()
