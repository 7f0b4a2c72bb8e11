"""The demo model: a tiny Qwen3 model that ships inside the package, and how it was made.

In: nothing. Out: `model_path()`, a folder in Hugging Face format.
Must not know: the engine; importing this loads neither jax nor the weights.
"""

from pathlib import Path

__all__ = ["model_path"]


def model_path() -> Path:
    """The folder that holds the shipped demo model."""
    return Path(__file__).parent / "model"
