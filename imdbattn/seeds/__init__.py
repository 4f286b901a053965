"""Trains several seeds of a model in one process, their weights stacked and their steps computed together."""
