"""Frozen values in, text and figures out.

Nothing here measures, imports chainer or decides anything. `values` are what a training left behind, `table` turns rows
into text, Markdown and JSON, `comparison` says which rows a comparison of trainings has, `memory_plot` and
`comparison_chart` draw. Drawing needs matplotlib, which is an extra.
"""
