"""Packs plans into step inputs and unpacks results. numpy only; must not know programs."""
