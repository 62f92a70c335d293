"""Sphinx: the Markdown pages of this folder, and the reference of docstrings in Google form.

    python=$(sh environment.sh docs docs)
    "$python" -m sphinx -W -q -b html docs build/docs
"""
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

import chainer_ooc  # noqa: E402  before chainer

project = 'chainer_ooc'
author = 'chainer_ooc developers'
release = chainer_ooc.__version__
extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
html_theme = 'alabaster'
html_theme_options = {'description': 'Chainer, beyond the memory of the device', 'page_width': '1100px'}
# Headings can be linked to, as on the pages of a repository.
myst_heading_anchors = 3
smartquotes = False  # they are code
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_typehints = 'none'
autodoc_member_order = 'bysource'


def setup(app: Any) -> None:
    """Has the pages read as they are on the pages of a repository."""
    app.connect('source-read', _adapt)


def _adapt(app: Any, name: str, source: list[str]) -> None:
    """Names files that are not pages in place of linking to them, and leaves tables of results out of the menu."""
    folder = (DOCS / name).parent

    def link(found: re.Match[str]) -> str:
        file = (folder / found[1]).resolve()
        return found[0] if file.is_relative_to(DOCS) else f'] (`{file.relative_to(ROOT)}`)'

    source[0] = re.sub(r'\]\((\.\./[^)#]*)[^)]*\)', link, source[0])
    if re.match('results/.*-', name):
        source[0] = '---\norphan: true\n---\n' + source[0]
