"""The types of all settings, their names, and checks of untrusted input."""
