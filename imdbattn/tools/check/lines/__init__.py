"""Looks for a line of a student's code whose change makes a wrong part right."""
