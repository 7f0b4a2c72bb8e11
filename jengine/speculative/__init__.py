"""Speculative decoding: several tokens of a row in one step, the same tokens as without.

In: committed tokens. Out: draft tokens, proposals of the tokens that follow. Must not know
requests, plans, devices. Host proposers (n-gram, suffix) are here; draft models, and what runs
drafts, are in the rooms below.

**What is exact.** A row's token at a position is a function of its logits, its seed and the
position (`sampling/row_operations.py`). A step runs the row's last token and its drafts, and
samples after each of them as plain decoding would. A draft is accepted if it is the token sampled
before it; then the logits after it are those of plain decoding too. So every token is the one that
plain decoding gives, for greedy and for sampled rows, with all filters, penalties and masks, and a
bad draft costs only time. (Programs of different sizes may round differently, see
`assembly/sizes/step_programs.py`.)

**What that costs.** A proposer that does not draw its draft, as those here, has it accepted with
the probability that the model gives the token, as with the classic rule (accept x if u <=
p(x) / q(x), else sample from what is left of p): there q(x) = 1. For a draft model with
distribution q the classic rule accepts with probability 1 - d, where d is the total variation
distance of p and q. As ours draws with the noise of the very same seed and position, the two
draws agree with probability at least (1 - d) / (1 + d) (Gumbel coupling, Daliri et al. 2024),
and the outputs still do not depend on the draft model at all. A greedy draft is accepted with
probability p(argmax q). No second distribution is kept, and no residual is sampled.

**Entries.** A decode entry of a plan has `length` 1 + K: the token that the row sampled last, and K
drafts. In the step each of them is a decode row of its own at its own position: attention, KV
writes and logits need nothing new, a row may have any number of drafts, and the bucket is the one
for that many decode rows. `sampling/acceptance.py` compares drafts with sampled tokens and says
which slots count. The row's length on the device grows by the number that count.

**Positions.** The host plans the next step before it has read this one, so it does not know how
many drafts were accepted. It counts all of them (`Request.num_computed` is what the row has
reserved: blocks, the length cap) and takes back what was rejected at commit. Entries carry this
upper bound; the step uses the lengths on the device. Drafts are therefore given by absolute
position: a `Drafts` of a plan is a window of drafts from the first position where the row's next
token can stand, and the step takes those that follow the length that the row really has. If a
draft in flight is rejected the window is most likely wrong, and that step gives one token.

**Cache.** Blocks are reserved up to the upper bound. Keys and values of rejected drafts stand
beyond the row's length: no query reads them before they are overwritten. A window gives blocks
back by committed tokens, never by the upper bound. Only committed tokens are published. A group
that cannot forget tokens (recurrent layers) has drafts run on copies of its states, and the tokens
that count run again on the states themselves (`layers/drafted_states.py`). Its drafts end where a
snapshot is kept, and tokens behind it write to another unit. A draft model with such layers
is refused: its drafts would change its states.

**Sampling.** Penalties, bad words and min_tokens see the drafts before a slot as if they had been
sampled (`SamplingInput.earlier`); accepted tokens alone are counted in the state. Log-probabilities
are those of each slot. Stop ids, the length cap and failed rows are found at commit, token by
token, within the accepted run; stop strings where text is made, which aborts the request.

**Who gets how many.** `DraftLength` per row, from what was accepted of it and, at first, of the
requests before it; no drafts while a prompt runs, beyond the length cap, or where they would
preempt a request. A step of decodes that has no drafts and makes no drafts runs in a program
without any of this (`Features.drafts`). So it is where no draft can pay in so large a batch, and
where all rows have given up for long; then a drafter with a cache misses tokens, and its next
drafts are worse until the next request.

**Grammars** say which drafts run (`scheduler.draft_sources.CheckDrafts`), and bring a mask for each
slot (`jengine.grammar`). Drafts of the device are read for that with the tokens of their step, for
which rows with a grammar wait anyway.

**Multi-step decode** is the loop of the same step without a proposer: each run gives one token.
With a device proposer the runs of the loop give up to 1 + K tokens each; tokens of an entry are
marked where none was accepted (`outputs.NO_TOKEN`), so a run may leave gaps.

**Drafts of the device** (`runner/step/draft_stage.py`). A drafter runs at the end of each step,
after acceptance, and so never from a rejected draft. It is given all tokens that the step ran with
their hidden states, and per row the last token that counts; it leaves K drafts per row in the
step's state, where the next step finds its drafts. The host plans a number of drafts for such rows
without knowing them (`scheduler/draft_sources.py`), and a number of drafts for the step to make. A
drafter's parameters follow the model's as further leaves, its layers are numbered after the
model's, and what they keep is in cache groups like any other: allocated, found by prefix and given
back together. A drafter writes into its cache beyond the row's length, so a request holds blocks
for as many positions more (`CacheConfig.lookahead`). A draft model runs whatever the step ran,
rejected drafts included, and then decodes K times from the last token; one that was trained for it
reads mask tokens in place of its own drafts, and makes all of them in one pass
(`parallel_drafting`). It draws each draft with the noise that the token will be drawn with, so that
a good model is right about drawn tokens as well. Heads (`models/draft_heads`: EAGLE, EAGLE-3, MTP,
Medusa) read the hidden states in its place: those after the last norm or, EAGLE-3, those that
passed certain tap points, which the step's context keeps. Under an adapter these are the adapted
model's; drafts are never made with adapters of their own.

**Pipelines** pack positions with each plan and refuse drafts.
"""
