"""A trained model as a folder that needs no run folder, wheel, cache or network, and as a graph for
other programs.
"""
