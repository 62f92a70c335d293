"""What the documents name is there: files move, and prose stays behind."""
import itertools
import re
from pathlib import Path

import pytest

import tutorial

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md',
             *(path for folder in ('docs', 'benchmarks') for path in sorted((ROOT / folder).rglob('*.md')))]
FILES = {path.relative_to(ROOT).as_posix()
         for folder in ('benchmarks', 'chainer_ooc', 'docs', 'examples', 'patches', 'tests')
         for path in (ROOT / folder).rglob('*') if path.suffix in ('.py', '.sh', '.patch')} | {'environment.sh'}

#: What pages call programs of their readers.
OF_READERS = {'mine.py', 'train.py', 'model.py'}


def missing(text):
    """Paths of programs in a text that no file of the project ends with; Chainer's own tests are Chainer's."""
    named = re.findall(r'(?<![\w/.{*-])((?:[\w+-]+/)*[\w+-]+\.(?:py|sh|patch))(?!\w)', text)
    return sorted({name for name in named
                   if '_tests/' not in name and name not in OF_READERS and not any(
                       f'/{file}'.endswith(f'/{name}') for file in FILES)})


@pytest.mark.parametrize('document', DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_programs_that_a_document_names_are_there(document):
    assert missing(document.read_text('utf-8')) == []


def test_what_quick_leaves_out_is_there(pytestconfig):
    conftest, = (plugin for plugin in pytestconfig.pluginmanager.get_plugins() if hasattr(plugin, 'SLOW'))
    assert [each for each in conftest.SLOW if not (ROOT / 'tests' / each).exists()] == []


def test_the_rooms_that_the_architecture_names_are_all_there_are():
    text = (ROOT / 'docs' / 'architecture.md').read_text('utf-8')
    named = {*re.findall(r'(\w+)/', text[text.index('## The rooms'):text.index('## Glossary')])}
    folders = {path.name for path in (ROOT / 'chainer_ooc').iterdir() if (path / '__init__.py').exists()}
    assert folders <= named


def links(document):
    """Targets of the links of a page that are files, and the heading behind a #."""
    text = re.sub(r'```.*?```', '', document.read_text('utf-8'), flags=re.DOTALL)
    return [target for target in re.findall(r'\]\(([^)\s]+)\)', text) if '://' not in target]


def headings(document):
    """What a heading is linked to by, as on the pages of a repository."""
    text = re.sub(r'```.*?```', '', document.read_text('utf-8'), flags=re.DOTALL)
    return {re.sub(r'[^\w -]', '', heading.lower()).strip().replace(' ', '-')
            for heading in re.findall(r'^#+ (.*)$', text, re.MULTILINE)}


@pytest.mark.parametrize('document', DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_document_links_to_is_there(document):
    for target in links(document):
        name, _, anchor = target.partition('#')
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), target
        assert not anchor or anchor in headings(file), target


def test_the_reference_has_every_public_name():
    import chainer_ooc
    text = (ROOT / 'docs' / 'api.rst').read_text('utf-8')
    public = [f'chainer_ooc.{name}' for name in chainer_ooc.__all__ if not name.startswith('_')]
    import chainer_ooc.extensions
    public += [f'chainer_ooc.extensions.{name}' for name in chainer_ooc.extensions.__all__]
    assert [name for name in public if not re.search(rf':: {re.escape(name)}$', text, re.MULTILINE)] == []


def test_every_page_is_in_the_menu():
    text = (ROOT / 'docs' / 'index.md').read_text('utf-8')
    pages = {path.stem for path in (ROOT / 'docs').glob('*.*') if path.suffix in ('.md', '.rst')} - {'index'}
    assert {page for page in pages if not re.search(rf'^{page}$', text, re.MULTILINE)} == set()


def test_outputs_of_the_tutorial_are_compared_by_their_words():
    found = tutorial.words
    assert found('time 2.15 s, in-core 1.9 s\n---- ---\n') == found('time  101 ms, in-core 2 s\n-- -\n')
    assert found('gap no plan is faster (1 s or more)') == found('gap within 0.2 % of the best possible (2 s or more)')
    assert found('1 feature map, 999.9 MB') == found('12 feature maps,\n1.00 GB')
    assert found('trace written to a') != found('trace written to b')
    assert found('') != found('Traceback (most recent call last)')


def test_the_tutorial_has_an_output_behind_each_command():
    kinds = [kind for kind, _ in tutorial._BLOCK.findall(tutorial.PAGE.read_text('utf-8'))]
    assert kinds.count('sh') == kinds.count('text') == 7
    assert all(after == 'text' for kind, after in itertools.pairwise(kinds) if kind == 'sh')


def test_a_block_that_prints_something_else_is_told(tmp_path, monkeypatch, capsys):
    page = tmp_path / 'tutorial.md'
    page.write_text('```python\n# a.py\nprint("one 1")\n```\n```sh\npython a.py\n```\n```text\none 2\n```\n'
                    '```sh\necho two && exit 3\n```\n```text\ntwo\n```\n')
    monkeypatch.setattr(tutorial, 'PAGE', page)
    assert tutorial.main([]) == 1
    out = capsys.readouterr().out
    assert out.startswith('$ echo two && exit 3\n') and 'exit status 3' in out
    assert out.endswith('1 of 2 outputs are as in the tutorial\n')
    assert tutorial.main(['--write']) == 0
    assert '```text\none 1\n```' in page.read_text()
    assert tutorial.main([]) == 0


def test_a_file_that_is_not_there_is_found():
    assert missing('see `execute/nowhere.py`, environment.sh and `tests/test_docs.py`') == ['execute/nowhere.py']
