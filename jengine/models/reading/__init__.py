"""Between a config.json and a ModelConfig."""
