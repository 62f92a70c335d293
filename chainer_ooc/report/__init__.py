"""Frozen values in, text and figures out.

Nothing here measures, imports chainer or decides anything. `table` turns rows into text, Markdown and JSON, `figure`
has the looks of all pictures. Drawing needs matplotlib, which is an extra.
"""
