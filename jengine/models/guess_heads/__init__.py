"""Heads that guess a model's next tokens from its hidden states: EAGLE, EAGLE-3, MTP, Medusa."""
