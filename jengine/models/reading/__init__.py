"""From a config.json to a ModelConfig and back."""
