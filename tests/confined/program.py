"""A confined process for tests: does what a message says."""

from __future__ import annotations

import ctypes
import os
import sys
import time

from jengine.confined.child import MIB, Answer, serve
from jengine.errors import RequestError
from jengine.wire import frames


def prepare(job: bytearray) -> tuple[Answer, int]:
    """Answers with the job, where a message asks for it."""
    kept = list[bytes]()

    def answer(asked: bytearray) -> tuple[bytes, ...]:
        what, _, more = asked.decode().partition(" ")
        match what:
            case "job":
                return (bytes(job),)
            case "echo":
                return (more.encode(), b"!")
            case "sleep":
                time.sleep(float(more))
            case "refuse":
                raise RequestError(more)
            case "allocate":
                kept.append(b"x" * (int(more) * MIB))
                return (len(kept[-1]).to_bytes(8, "little"),)
            case "crash":
                ctypes.string_at(0)
            case "boast":  # of more than could ever come
                os.write(0, frames.HEAD.pack(frames.ANSWER, 2**40))
            case "loaded":
                return (str(bool({"jax", "zmq"} & set(sys.modules))).encode(),)
        return (str(os.getpid()).encode(),)

    return answer, 512 * MIB


if __name__ == "__main__":
    serve(prepare, idle_seconds=float(os.environ.get("TEST_IDLE", "60")))
