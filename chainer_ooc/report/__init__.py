"""Turns frozen values into text and figures; imports no Chainer.

`table` turns rows into text, Markdown and JSON; `figure` has what all pictures share. Drawing needs matplotlib.
"""
