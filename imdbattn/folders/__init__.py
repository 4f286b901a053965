"""The folder of a run: its files, how a run begins in it, and the class that opens it."""
