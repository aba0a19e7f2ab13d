"""Each part of the test vectors apart, so that a change of what clients share is noticed near to it and at once."""

from types import ModuleType

import pytest

from tests.vectors import blobs, draws, make, messages, pictures, plans, statements


@pytest.mark.parametrize(
    "maker", [blobs, draws, messages, pictures, plans, statements], ids=lambda maker: maker.__name__
)
def test_what_this_version_gives_is_what_is_committed(maker: ModuleType) -> None:
    for name, content in maker.files().items():
        assert content == (make.FOLDER / name).read_bytes(), f"{name}: run `make vectors` and look at what has changed"
