"""jengine inside other people's programs: one file a program, thin, over the public LLM."""
