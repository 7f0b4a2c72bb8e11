"""Doctor: installed packages, and whether jax, jaxlib and accelerator plugins match.

Reads installed metadata only. Must not import what it checks.
"""

from __future__ import annotations

import platform
from importlib import metadata

import jengine
from jengine.cli.checks.finding import Finding

NEEDED = (
    "jax", "jaxlib", "flax", "orbax-checkpoint", "transformers", "tokenizers", "jinja2", "numpy",
    "msgspec", "psutil", "tqdm", "llguidance",
)  # fmt: skip
OPTIONAL = {
    "optax": "training the demo model",
    "fa4-jax": "FlashAttention-4 for prompts on GPUs: jengine[fa4], 310 MB or more with NVIDIA's "
    "CUTLASS DSL, which is proprietary",
    "torch": "comparing with the PyTorch path",
    "matplotlib": "plots",
    "treescope": "model pictures in notebooks",
    "ipywidgets": "progress bars in notebooks",
}


def check() -> list[Finding]:
    """Findings on versions, plugins and optional packages."""
    python = Finding("OK", "versions", f"jengine {jengine.__version__}, "
                     f"Python {platform.python_version()} on {platform.platform()}")  # fmt: skip
    return [python, *needed(installed(NEEDED)), *plugins(all_versions()), optional()]


def installed(names: tuple[str, ...]) -> dict[str, str | None]:
    """Version of each package, None if it is missing."""
    versions = all_versions()
    return {name: versions.get(name) for name in names}


def all_versions() -> dict[str, str]:
    return {
        dist.metadata["Name"].lower().replace("_", "-"): dist.version
        for dist in metadata.distributions()
        if dist.metadata["Name"]
    }


def needed(versions: dict[str, str | None]) -> list[Finding]:
    """Missing packages, and mismatched jax and jaxlib."""
    missing = [name for name, version in versions.items() if version is None]
    present = [f"{name} {version}" for name, version in versions.items() if version]
    findings = [Finding("OK", "versions", ", ".join(present), {"packages": versions})]
    if missing:
        text = f"missing: {', '.join(missing)}. Install with: pip install {' '.join(missing)}"
        findings.append(Finding("problem", "versions", text))
    jax, jaxlib = versions.get("jax"), versions.get("jaxlib")
    if jax and jaxlib and jax != jaxlib:
        text = f"jax {jax} with jaxlib {jaxlib}: install the same: pip install jaxlib=={jax}"
        findings.append(Finding("problem", "versions", text))
    return findings


def plugins(versions: dict[str, str]) -> list[Finding]:
    """Accelerator plugins must match jaxlib's version, or JAX silently uses the CPU."""
    jaxlib = versions.get("jaxlib")
    findings = []
    for name, version in sorted(versions.items()):
        if not name.startswith("jax-") or not name.endswith(("-plugin", "-pjrt")):
            continue
        if version == jaxlib:
            findings.append(Finding("OK", "plugins", f"{name} {version}"))
        else:
            text = f"{name} {version} with jaxlib {jaxlib}. Install: pip install {name}=={jaxlib}"
            findings.append(Finding("problem", "plugins", text))
    return findings


def optional() -> Finding:
    versions = installed(tuple(OPTIONAL))
    have = [f"{name} {version}" for name, version in versions.items() if version]
    lack = [f"{name} ({OPTIONAL[name]})" for name, version in versions.items() if not version]
    parts = {"installed: ": have, "not installed: ": lack}
    text = "; ".join(head + ", ".join(names) for head, names in parts.items() if names)
    return Finding("note" if lack else "OK", "optional", text, {"packages": versions})
