"""Exports a trained model as a self-contained folder, and as a graph for other programs."""
