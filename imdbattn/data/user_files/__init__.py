"""Users' tables and folders, read as intended or refused."""
