"""The command line, the schema of all settings, their names, and checks of untrusted input."""
