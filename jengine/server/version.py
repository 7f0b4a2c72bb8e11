"""The server's version, as responses tell it."""

from __future__ import annotations

import jengine

VERSION = jengine.__version__
# In the field system_fingerprint: answers may differ between servers where this differs.
FINGERPRINT = f"jengine-{VERSION}"
