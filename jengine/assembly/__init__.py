"""From settings to a running engine: arguments, sizes, where a model comes from, building."""
