"""The server's version in responses."""

from __future__ import annotations

import jengine

VERSION = jengine.__version__
# `system_fingerprint`: answers may differ between servers whose fingerprints differ.
FINGERPRINT = f"jengine-{VERSION}"
