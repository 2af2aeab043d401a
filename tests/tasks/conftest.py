"""A judge of the scorers in judging.py."""

import pytest
from judging import SCORERS

from gruppo.tasks.judge import Judge


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("scorers") / "scorers.py"
    path.write_text(SCORERS)
    return str(path)


@pytest.fixture
def judge(file: str):
    with Judge(f"{file}:one", seconds=1.0) as judge:
        yield judge
