"""Prints documents that the demo model was not trained on, as prompts of `jengine compare`.

python -m examples.demo_model.held_out > corpus.jsonl
"""

from __future__ import annotations

import json
import sys
from itertools import islice

from examples.demo_model import corpus

DOCUMENTS = 40


def main() -> None:
    """One JSON string a line, special tokens as text."""
    for document in islice(corpus.documents("compare", held_out=True), DOCUMENTS):
        text = "".join(segment.text for segment in corpus.render(document))
        sys.stdout.write(json.dumps(text) + "\n")


if __name__ == "__main__":
    main()
