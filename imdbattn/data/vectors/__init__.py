"""Reads the vectors of words in the forms in which people have them: one file per form."""
