"""Each way in which Chainer cannot be patched, in a bare Python, and what the error tells the user to do."""
import shutil

import pytest

USE = 'import chainer_ooc, chainer'
BOTH = 'try:\n    import chainer\nexcept Exception:\n    pass\nimport chainer_ooc'


def test_chainer_imported_first_is_refused(site):
    error = site.error(BOTH)
    assert error.startswith('chainer_ooc.errors.ForkError: chainer was imported before chainer_ooc')
    assert 'import chainer_ooc first' in error


def test_the_module_that_imported_chainer_too_early_is_named_with_its_line(site):
    shutil.rmtree(site.chainer)
    site.chainer.mkdir()
    (site.chainer / '__init__.py').write_text('class Variable: pass\n')
    (site.folder / 'eager.py').write_text('"""Comes first."""\nfrom chainer import Variable\n')
    error = site.error('import eager\nimport chainer_ooc')
    assert f'(by {site.folder / "eager.py"}, line 2)' in error


def test_a_patched_module_that_was_imported_before_a_failing_chainer_is_seen(site):
    (site.chainer / '__init__.py').write_text('from chainer import configuration\nraise RuntimeError\n')
    assert 'chainer was imported before chainer_ooc' in site.error(BOTH)


def test_another_version_is_named_beside_the_one_needed_with_the_command(site):
    version = site.chainer / '_version.py'
    version.write_text(version.read_text().replace('7.8.1', '7.8.0'))
    error = site.error(USE)
    assert 'chainer 7.8.0 is installed' in error
    assert 'pip install --no-build-isolation chainer==7.8.1' in error


def test_an_altered_file_is_named_with_both_hashes_and_the_command(site):
    altered = site.chainer / 'variable.py'
    altered.write_text(altered.read_text() + '# mine\n')
    error = site.error(USE)
    assert f'{altered} is not the file of chainer 7.8.1 (sha256 expected ' in error
    assert 'pip install --force-reinstall --no-deps --no-build-isolation chainer==7.8.1' in error


def test_a_file_that_is_gone_is_named(site):
    (site.chainer / 'variable.py').unlink()
    assert 'variable.py is not the file of chainer 7.8.1' in site.error(USE)
    assert 'found no file' in site.error(USE)


@pytest.mark.parametrize('namespace', [False, True], ids=['absent', 'a folder of that name'])
def test_absent_chainer_is_named_with_the_command(site, namespace):
    shutil.rmtree(site.chainer)
    if namespace:
        site.chainer.mkdir()
    error = site.error(USE)
    assert 'chainer is not installed' in error
    assert '"setuptools<81"' in error


def test_a_zipped_chainer_cannot_be_patched(site):
    shutil.make_archive(site.folder / 'library', 'zip', site.folder, 'chainer')
    shutil.rmtree(site.chainer)
    error = site.error(f'import sys\nsys.path.append({str(site.folder / "library.zip")!r})\n{USE}')
    assert 'must be installed as files to be patched' in error


def test_an_absent_chainer_is_an_import_error_that_programs_can_catch(site):
    shutil.rmtree(site.chainer)
    code = 'import chainer_ooc\ntry:\n    import chainer\nexcept ImportError as error:\n    print(error.name)'
    assert site.output(code) == 'chainer'


def test_check_verifies_without_an_import(site):
    code = 'from chainer_ooc import fork\nimport sys\nprint(fork.check(), "chainer" in sys.modules)'
    assert site.output(code) == f'{site.folder} False'
