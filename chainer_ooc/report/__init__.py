"""Turns frozen values into text, figures and pages; imports no Chainer.

    table       rows as text, Markdown and JSON
    figure      what all pictures share; drawing needs matplotlib
    reasons     why a feature map has its verdict
    memory      what near memory holds at each position, by kind
    contents    what a report shows, as one frozen value
    page        that value as a page of HTML, with the files of assets/ in it
    perfetto    as events for ui.perfetto.dev
    still       as a picture
"""
