"""Who runs: continuous batching, chunked prefill, preemption and priorities.

In: WireRequests, aborts, StepOutputs. Out: Plans and TokenDeltas.
Must not know: text, arrays on a device, how a plan is run.
"""
