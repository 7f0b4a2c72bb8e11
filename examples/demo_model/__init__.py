"""How the demo model that ships with jengine is made: its text, tokenizer, training, evaluation."""
