"""Draft heads on a model's hidden states: EAGLE, EAGLE-3, MTP, Medusa."""
