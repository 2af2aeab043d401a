"""Evidence for clip_cov: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
import pytest
from six_answers import close
from small_batches import cov_slopes

from gruppo.methods.clip_cov import ClipCovariance

test_laws = evidence.laws("clip_cov")
test_asks = evidence.asks("clip_cov")
test_planted_mistakes = evidence.planted("clip_cov")
test_equivalences = evidence.equivalences("clip_cov")
test_resume = evidence.resume("clip_cov")


@pytest.mark.parametrize(
    ("low", "high", "share", "slope"),
    [
        (1.0, 2.0, 0.9, [0.0, -0.5, 0.0, 0.0]),
        (2.0, 5.0, 0.9, [0.5, 0.0, 0.0, 0.0]),
        (2.5, 5.0, 0.9, [0.5, -0.5, 0.0, 0.0]),
        (1.0, 5.0, 0.0, [0.5, -0.5, 0.0, 0.0]),
    ],
    ids=["the first; the third is clipped already", "the second", "the band is open", "a share of 0 is none"],
)
def test_clip_cov_leaves_out_of_the_numerator_only(low: float, high: float, share: float, slope: list[float]) -> None:
    """Clip .2/.2: r = 1.5 with A > 0 has no gradient anyhow. The others have A r / 4, or 0 if left out; 4 stays."""
    close(cov_slopes(ClipCovariance(share, low, high, 0.2, 0.2)), slope)


def test_clip_cov_takes_one_at_least() -> None:
    """2e-4 of four tokens is less than one: one of the two candidates is out, which one is the key's affair."""
    slope = cov_slopes(ClipCovariance(2e-4, 1.0, 5.0, 0.2, 0.2))
    assert sorted(x == 0 for x in slope) == [False, True, True, True]


def test_clip_cov_the_band_is_open_above() -> None:
    """c = (1.5, 2.5, 1.5, .5): with cov_high = 2.5 the second is no candidate."""
    close(cov_slopes(ClipCovariance(0.9, 1.0, 2.5, 0.2, 0.2)), [0.0, -0.5, 0.0, 0.0])
