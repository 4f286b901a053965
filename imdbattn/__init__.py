"""imdbattn: a ladder of attention models over GloVe-embedded IMDB reviews."""

__version__ = "0.1.0"
