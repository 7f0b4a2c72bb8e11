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
# # Where does the model keep the numbers?
#
# Two prompts differ in one number. Each hidden state of one is patched into the other, at every
# layer and token, all in one batch: where does the answer become the other prompt's? Below it, a
# logit lens: what each layer would answer. The digit carries it through the first layers, then the
# last token. How to open this notebook: see `first_look.py`.

# %%
import matplotlib.pyplot as plt
import numpy as np

from jengine import LLM, SamplingParams

llm = LLM("demo", max_model_len=256, enforce_eager=True)
tokenizer = llm.get_tokenizer()
ask = "<|im_start|>user\nWhat is {} + 45?<|im_end|>\n<|im_start|>assistant\n"
clean, corrupted = (tokenizer(ask.format(number)).input_ids for number in (23, 73))
assert len(clean) == len(corrupted)

# %%
one = SamplingParams(temperature=0, max_tokens=1)
outputs = llm.generate([clean, corrupted], one, capture=["layers.*.output"])
right, wrong = (output.outputs[0].token_ids[0] for output in outputs)
grid = llm.patch_grid(corrupted, outputs[0].captured)
stream = np.stack(list(outputs[0].captured.values()))  # [layers, tokens, width]


def preferred(logits):
    """How much likelier the clean answer is than the corrupted one."""
    return np.asarray(logits[..., right] - logits[..., wrong])


patched, lens = preferred(llm.unembed(grid.hidden)), preferred(llm.unembed(stream, norm=True))

# %%
figure, axes = plt.subplots(2, figsize=(11, 6), layout="constrained", sharex=True)
shown = {"patched at one layer and token": patched, "logit lens": lens}
for axis, (title, values) in zip(axes, shown.items(), strict=True):
    most = np.abs(values).max()
    image = axis.imshow(values, aspect="auto", cmap="RdBu", vmin=-most, vmax=most)
    axis.set(title=title, ylabel="layer", xticks=range(len(clean)))
    figure.colorbar(
        image, label="logit of {!r} over {!r}".format(*map(tokenizer.decode, (right, wrong)))
    )
axes[1].set_xticklabels([repr(tokenizer.decode(token)) for token in clean], rotation=90)
plt.show()
