"""Packs plans into arrays and unpacks results. numpy only; must not know programs."""
