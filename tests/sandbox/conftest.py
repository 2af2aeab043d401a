"""A sandbox of each isolation, and bait on the host. Where the kernel has no such isolation, a test says so."""

from collections.abc import Iterator

import pytest

from gruppo.sandbox import ISOLATIONS, NoIsolation, Sandbox
from gruppo.sandbox.bait import Bait


@pytest.fixture(scope="module", params=ISOLATIONS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    box = Sandbox(request.param)
    try:
        box.start()
    except NoIsolation as error:
        pytest.skip(str(error))
    yield box
    box.close()


@pytest.fixture(scope="module")
def bait() -> Iterator[Bait]:
    with Bait() as made:
        yield made
