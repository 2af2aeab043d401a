"""What `be_deterministic` leaves behind: torch as it was."""

import pytest
import torch

from gruppo.train.exact import be_deterministic


class Owner:
    pass


@pytest.mark.parametrize("warns", [False, True])
def test_torch_is_as_it_was_when_the_last_who_asked_has_ended(warns: bool) -> None:
    """Also where its user wanted warnings only: an error in the code after a run would come from nowhere."""
    torch.use_deterministic_algorithms(True, warn_only=warns)
    try:
        first, second = Owner(), Owner()
        ends = [be_deterministic(first), be_deterministic(second)]
        for end in ends:
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
            end()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() is warns
    finally:
        torch.use_deterministic_algorithms(False)
