"""Trains, scores and applies runs."""
