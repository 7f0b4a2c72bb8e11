"""The demo model: a tiny Qwen3 model that ships inside the package, a head that drafts tokens for
it, and how they were made.

In: nothing. Out: folders in Hugging Face format, by name.
Must not know: the engine; importing this loads neither jax nor the weights.
"""

from pathlib import Path

__all__ = ["SHIPPED", "eagle_path", "model_path"]


def model_path() -> Path:
    """The folder that holds the shipped demo model."""
    return Path(__file__).parent / "model"


def eagle_path() -> Path:
    """The folder that holds an EAGLE head for it."""
    return Path(__file__).parent / "eagle"


SHIPPED = {"demo": model_path(), "demo-eagle": eagle_path()}
