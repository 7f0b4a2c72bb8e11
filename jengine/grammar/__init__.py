"""Structured output on the host: compiles grammars and follows answers token by token. No jax.

In: GrammarSpecs, plans and sampled tokens. Out: token masks in the plan.

- `SamplingParams.structured_outputs` becomes a `GrammarSpec` (plain data) in the request's
  `RowSampling`, so it travels like the temperature: over the wire, into the plan's `NewRow`.
- **Compiling** (`compiler.py`): a small thread pool runs llguidance, which releases the GIL and
  bounds its own work ("fuel"). Size and nesting are checked first, the waiting thread enforces a
  deadline of 5 seconds, and compiled grammars are cached up to a number of bytes. A front end
  compiles without a tokenizer, only to refuse invalid grammars early; a core with one.
- **Admission**: the gate `scheduler.gates.GrammarReady` parks a request until its grammar is
  compiled; requests behind it pass. If compiling fails, the request is admitted and its first step
  ends it with the reason, so only the executor handles failures.
- **Matchers** (`grammar_rows.py`) belong to an executor that wraps the executor
  (`executor/grammar_masks.py`), like the flight recorder. It sees each plan between `schedule` and
  `submit`, and each output before `commit`, so the core's loop and the scheduler know nothing of
  grammars. Its state derives from plans and outputs alone: `NewRow` creates a matcher and replays
  the output tokens so far (so preemption needs no extra state), an output advances it, and a plan
  that samples for the row gets a mask.
- **One step in flight**: the scheduler plans a row with a grammar or a thinking budget only once
  its last token is read (`Request.reads_each_token`); other rows keep their overlap. Such rows join
  no multi-step decode, wait for each other so as to run in the same steps, and have their next step
  queued before the last step's tokens are detokenized.
- **Drafts**: since no step of such a row is in flight when it is planned, its drafts follow its
  known tokens. `GrammarRows.checked` walks a copy of the matcher along them and cuts them at the
  first token that the grammar rejects or that ends the answer; if the grammar forces tokens, those
  are the drafts. The plan carries a mask for the row's next token and for the one after each draft,
  so sampling is the same as without drafts. When the step is read, the matcher copy after the last
  accepted draft becomes the row's matcher. Drafts made on the device are read with the tokens of
  the step that made them (`StepOutput.next_drafts`), in time for the next plan, and cut likewise;
  there forced tokens are not used as drafts.
- **Masks on the device**: like a row with penalties, a row with a grammar has a row in the
  sampler's pool, which holds its masks (i32[1 + K, V / 32], one bit per token, K: maximum drafts).
  `Plan.masks` carries changed masks; a small donated program writes them before the step
  (`runner/programs/token_masks.py`), like block tables. So only rows with a grammar cost a
  transfer, of V / 8 bytes, and no step program, bucket or variant is added: these rows need the
  adjusted variant, which skips penalties and biases if no row of a step has any
  (`SamplingInput.beyond_mask`). The mask applies to raw logits, before bias, penalties and filters,
  and after the caller's logits processors (`sampling/processors.py`); raw log-probabilities are
  those of the masked logits.
- **Filling masks**: as soon as a step's tokens are read, for all rows together (`mask_filler.py`).
  A mask with a single token shows that the grammar forces tokens, and a mask equal to the row's
  last one is not sent. A row's next mask depends on its last token, so its steps cannot overlap
  with the host's work on them, except detokenization.
- **Ends**: EOS and the request's stop ids are allowed exactly where the grammar may end. A token
  that the grammar rejects, or a mask that exceeds llguidance's limits, ends the request with
  finish_reason "error" (`outputs.REFUSED`, `StepOutput.refusals`).
- **Reasoning**: with `begins_after` all tokens are allowed until the end of reasoning was sampled.
- **Thinking budgets** (`thinking.py`): a row with `thinking_token_budget` has a follower that wraps
  its grammar's matcher, if any. While tokens are left, its mask allows all and is sent once; then
  it allows only the next token of the forced end, unless a grammar that has started rejects it. The
  front end tokenizes the marks of `reasoning_config`.
- **Forced tokens** (jump-ahead): where the grammar leaves no choice for several tokens, they follow
  the sampled one in the output (`StepOutput.forced`). The commit appends them, and the row runs
  them as a prefill chunk (`Plan.known`). Rows whose log-probabilities are wanted, or whose tokens
  the device counts, sample them under masks instead.
"""
