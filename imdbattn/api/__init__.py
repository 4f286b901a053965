"""The Python API: what `import imdbattn` offers. It runs what the commands run."""
