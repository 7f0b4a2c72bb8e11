"""Structured output on the host: grammars are compiled, and followed token by token. No jax.

In: GrammarSpecs, plans and sampled tokens. Out: token masks in the plan. The design, whole:

- `SamplingParams.structured_outputs` becomes a `GrammarSpec` (plain data) in the request's
  `RowSampling`, so it travels where temperature does: over the wire, into the plan's `NewRow`.
- **Compiling** (`compiler.py`): threads of a small pool run llguidance, which releases the GIL and
  bounds its own work ("fuel"). Size and nesting are checked before, the waiting thread enforces a
  deadline of 5 seconds, and compiled grammars are cached up to a number of bytes. A front compiles
  without a tokenizer, only to refuse bad grammars with the request's own error; a core with one.
- **Admission**: `scheduler.gates.GrammarReady` keeps a request back until its grammar is compiled,
  and requests behind it pass. A grammar that fails opens the gate: the request's first step ends
  it with the reason, so that no one but the executor below must know of failures.
- **Matchers** (`grammar_rows.py`) are owned by an executor around the executor
  (`executor/grammar_masks.py`), as the flight recorder is. It sees each plan between `schedule` and
  `submit`, and each output before `commit`: the heart and the scheduler do not know it. What it
  keeps follows from plans and outputs alone: `NewRow` starts a matcher and replays the tokens known
  since the prompt (so preemption needs nothing else), an output advances it, and a plan that
  samples for the row gets a mask.
- **One step in flight**: the scheduler plans a row with a grammar or a budget only once its last
  token is read (`Request.reads_each_token`); all other rows keep their overlap. Such a row joins no
  multi-step decode. Such rows wait for each other, so that they run in the same steps, and a core
  queues their next step before the tokens of the last one become text.
- **Drafts**: as nothing of such a row is in flight when it is planned, its drafts follow its known
  tokens. Before they are planned, `GrammarRows.checked` walks a copy of the matcher along them and
  cuts them at the first token that the grammar refuses, or that ends the answer; where the grammar
  forces tokens, those are the drafts. The plan brings a mask for the row's next token and for the
  one after each draft, so every slot samples as it would without drafts. When the step is read, the
  copy behind the last accepted draft is the row's matcher. Drafts that a device makes itself are
  read with the tokens of the step that has made them (`StepOutput.next_drafts`), in time for the
  next plan, and cut in the same way; there tokens that the grammar forces are no drafts.
- **The mask's way to the device**: a row with a grammar has a row in the sampler's pool, as one
  with penalties has, and the pool keeps the row's masks (i32[1 + K, V / 32], one bit per token, K:
  the most drafts).
  `Plan.masks` brings the masks that changed; a small donated program writes them before the step
  (`runner/programs/token_masks.py`), as block tables are written. So only rows with a grammar cost
  a transfer, of V / 8 bytes, and no step program, bucket or variant is added: these rows need the
  adjusted variant, whose penalties and biases are left out where no row of a step has any
  (`SamplingInput.beyond_mask`). The mask applies to raw logits, before bias, penalties and filters,
  and after functions of the caller's (`sampling/processors.py`); raw log-probabilities are those of
  the masked logits.
- **When masks are filled**: as soon as a row's token is read, for all rows together
  (`mask_filler.py`). A mask of one token then shows where the grammar forces some, and one that
  equals the row's last mask is not sent. What cannot be hidden is the step itself: a row's next
  mask follows from its last token, so its steps do not overlap with the host's work on them, except
  detokenization.
- **Ends**: the end-of-sequence token and the request's stop ids are allowed exactly where the
  grammar may end. A token that the grammar refuses, or a mask that exceeds llguidance's limits,
  ends the request with finish_reason "error" (`outputs.REFUSED`, `StepOutput.refusals`).
- **Reasoning**: with `begins_after` all tokens are free until the end of reasoning was sampled.
- **Budgets of reasoning** (`thinking.py`): a row with `thinking_token_budget` has a follower of its
  own, around the matcher of its grammar if it has one. While tokens are left, its mask allows all
  and is sent once; then it allows the next token of the forced end alone, unless a grammar that
  has begun refuses it. The marks are token ids that the front has made of `reasoning_config`.
- **Forced tokens** (jump-ahead): where the grammar leaves no choice for several tokens, they follow
  the sampled one in the output (`StepOutput.forced`). The commit appends them, and the row runs
  them as a prefill chunk: `Plan.known` brings them. Rows whose log-probabilities are wanted, or
  whose tokens the device counts, sample them under masks that allow no other.
"""
