"""The process that decodes pictures: reads files from its input, and writes pixels to its output,
until the input ends. See `decoding_process`.
"""

from __future__ import annotations

import resource
import sys

from jengine.errors import RequestError
from jengine.media.decoding_process import HEAD
from jengine.media.images import decoded

MOST_MEMORY = 4 * 2**30  # address space of this process
NAME = "\0"  # in place of what the picture is called


def main() -> None:
    """Decode until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    given, made = sys.stdin.buffer, sys.stdout.buffer
    while head := given.read(HEAD.size):
        size, _, _ = HEAD.unpack(head)
        try:
            pixels = decoded(given.read(size), NAME)
        except RequestError as error:
            text = str(error).removeprefix(NAME).encode()
            made.write(HEAD.pack(len(text), 0, 0) + text)
        else:
            made.write(HEAD.pack(pixels.nbytes, *pixels.shape[:2]))
            made.write(pixels.data)
        made.flush()


if __name__ == "__main__":
    main()
