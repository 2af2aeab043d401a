import pytest

from gruppo.lab.exact import trial


@pytest.fixture(autouse=True)
def few_throws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of methods with random numbers of their own are less precise here, and say so: 1500 take a minute each."""
    monkeypatch.setattr(trial, "THROWS", 30)
