"""What users hold: LLM, AsyncLLM, generate(), arrays and taps."""
