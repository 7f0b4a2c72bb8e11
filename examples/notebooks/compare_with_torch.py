# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Can its numbers be trusted?
#
# bfloat16 is not exact, neither here nor in torch. The question is whether this engine is further
# from the truth than torch is. The truth is torch in float32, on the same weights; torch in
# bfloat16 and this engine in bfloat16 are both measured against it, tensor by tensor and token by
# token.
#
# torch runs in another process and is never imported here. Where it is not installed, a
# bundle from another machine does: `jengine compare MODEL --save-bundle FOLDER`. With neither, the
# page of a comparison of SmolLM2-135M-Instruct is shown, which the documentation keeps.
#
# How to open this file as a notebook: see `first_look.py`.

# %%
import html
import importlib.util
import os
import tempfile
from pathlib import Path

import jengine
from jengine import LLM, load_model

llm = LLM("demo", max_num_seqs=2, enforce_eager=True)
temporary = tempfile.TemporaryDirectory()
# A bundle that you have, or where a new one is written.
given = os.environ.get("JENGINE_BUNDLE")
bundle = Path(given or Path(temporary.name, "bundle"))

# %% [markdown]
# ## The comparison
#
# The report is one page: a verdict, the error of every tensor on the way through the model beside
# torch's own, the distributions, where greedy answers part and by how small a margin, and whether
# batches, chunks and cached prompts change anything. `.save_report("report.html")` keeps it as a
# file that opens anywhere.

# %%
KEPT = Path("jengine", "docs", "pages", "comparison.html")


def kept_page():
    """The documentation's comparison: of the repository that jengine is installed from, or of one
    around this folder."""
    from IPython.display import HTML

    folders = (*Path(jengine.__file__).parents, Path.cwd(), *Path.cwd().parents)
    found = next((folder / KEPT for folder in folders if (folder / KEPT).is_file()), None)
    if found is None:
        return HTML(f"It is <code>{KEPT}</code> of jengine's repository.")
    page = found.read_text(encoding="utf-8")
    style = "width:100%; height:820px; border:1px solid #8884; border-radius:8px"
    return HTML(f'<div><iframe srcdoc="{html.escape(page)}" style="{style}"></iframe></div>')


comparison = None
if given is not None:
    comparison = llm.compare(bundle)
elif importlib.util.find_spec("torch") is not None:
    comparison = llm.compare("torch", save_bundle=bundle)
else:
    print("There is no torch here, and JENGINE_BUNDLE names no bundle: this comparison was kept.")
kept_page() if comparison is None else comparison

# %%
if comparison is not None:
    print(comparison.verdict)
    points = comparison.columns("points")
    names = ("name", "ours_relative", "torch_relative", "band")
    for name, ours, theirs, band in zip(*(points[key] for key in names), strict=True):
        print(f"{name:>20}  ours {ours:.2e}  torch {theirs:.2e}  {band}")
    assert comparison.passed

# %% [markdown]
# ## A layer that is wrong
#
# Here the norm before the MLP of layer 2 is two percent too large, as after a slip in a conversion;
# what the model writes still reads well. The comparison names the first tensor that is further from
# the truth than bfloat16 explains. The engine's parameters are replaced while it lives, and the
# bundle is read again, so torch does not run a second time.

# %%
model = load_model("demo")
weight = model.layers[2].before_mlp.weight
weight[...] = weight[...] * 1.02
llm.update_params(model)
if comparison is not None:
    broken = llm.compare(bundle, sweeps=False)
    print(broken.verdict)
    assert broken.first_offender == "layers.2.mlp"

# %%
llm.shutdown()
temporary.cleanup()
