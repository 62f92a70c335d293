import pytest

from tests.schedule.conftest import trace_of  # noqa: F401, a fixture


class Drawing:
    """An allocator with named blocks, drawn unit by unit: letters for blocks, dots for what is cached."""

    def __init__(self, allocator, unit_bytes):
        self.allocator, self.unit_bytes, self.blocks = allocator, unit_bytes, {}

    def __call__(self, script):
        """Does what a script says: `a3` allocates 3 units as `a`, `-a` frees them."""
        for word in script.split():
            if word.startswith('-'):
                self.allocator.free(self.blocks.pop(word[1:]))
            else:
                self.blocks[word[0]] = self.allocator.malloc(int(word[1:]) * self.unit_bytes)
        return str(self)

    def __str__(self):
        stretches = [(block.address, block.size_bytes, name) for name, block in self.blocks.items()]
        stretches += [(address, size_bytes, '.') for address, size_bytes in self.allocator.cached]
        picture = ''
        for address, size_bytes, letter in sorted(stretches):
            picture = picture.ljust(address // self.unit_bytes) + letter * (size_bytes // self.unit_bytes)
        return picture


@pytest.fixture(scope='session')
def drawing():
    return Drawing
