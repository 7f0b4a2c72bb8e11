"""jengine inside other programs: one thin file per program, over the public LLM."""
