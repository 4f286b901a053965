"""Checks attention modules of students: `python -m imdbattn.check`, in a notebook `grade`."""
