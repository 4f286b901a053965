"""Pretraining on hidden words."""
