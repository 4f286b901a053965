"""Files: atomic writes, locks and folders."""
