"""From settings to a running engine: arguments, sizes, sources of models, construction."""
