"""What the documents name is there: files move, and prose stays behind."""
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / 'README.md', *sorted((ROOT / 'docs').rglob('*.md')), *sorted((ROOT / 'benchmarks').rglob('*.md'))]
FILES = {path.relative_to(ROOT).as_posix() for folder in ('benchmarks', 'chainer_ooc', 'examples', 'patches', 'tests')
         for path in (ROOT / folder).rglob('*') if path.suffix in ('.py', '.sh', '.patch')} | {'environment.sh'}


def missing(text):
    """Paths of programs in a text that no file of the project ends with; Chainer's own tests are Chainer's."""
    named = re.findall(r'(?<![\w/.{*-])((?:[\w+-]+/)*[\w+-]+\.(?:py|sh|patch))(?!\w)', text)
    return sorted({name for name in named
                   if '_tests/' not in name and not any(f'/{file}'.endswith(f'/{name}') for file in FILES)})


@pytest.mark.parametrize('document', DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_programs_that_a_document_names_are_there(document):
    assert missing(document.read_text('utf-8')) == []


def test_the_rooms_that_the_architecture_names_are_all_there_are():
    text = (ROOT / 'docs' / 'architecture.md').read_text('utf-8')
    named = {*re.findall(r'(\w+)/', text[text.index('## The rooms'):text.index('## Glossary')])}
    folders = {path.name for path in (ROOT / 'chainer_ooc').iterdir() if (path / '__init__.py').exists()}
    assert folders <= named


def test_a_file_that_is_not_there_is_found():
    assert missing('see `execute/nowhere.py`, environment.sh and `tests/test_docs.py`') == ['execute/nowhere.py']
