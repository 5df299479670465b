import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from densekd.reports.statistics import Summary, paired_difference

shares = st.floats(0, 1, allow_subnormal=False)


def test_the_variance_is_that_of_the_sample() -> None:
    # The paper's Table 6, whose variances are these.
    ccil = Summary.of([64.85, 67.3, 67.1, 67.44, 65.76])
    rdkd = Summary.of([66.09, 67.95, 67.61, 68.27, 66.99])
    assert ccil is not None
    assert rdkd is not None
    assert (ccil.mean, rdkd.mean) == pytest.approx((66.49, 67.382))
    assert (ccil.variance, rdkd.variance) == pytest.approx((1.288, 0.747), abs=5e-4)
    assert ccil.std == pytest.approx(np.std([64.85, 67.3, 67.1, 67.44, 65.76], ddof=1))


def test_a_single_value_has_no_spread_and_none_no_summary() -> None:
    assert Summary.of([0.5]) == Summary(0.5, None, 1)
    assert Summary(0.5, None, 1).std is None
    assert Summary.of([]) is None


@given(st.lists(st.tuples(shares, shares), min_size=2, max_size=8))
def test_the_interval_is_students_over_the_pairs(pairs: list[tuple[float, float]]) -> None:
    first, second = ({i: pair[k] for i, pair in enumerate(pairs)} for k in (0, 1))
    found = paired_difference(first, second)
    assert found is not None
    assert found.interval is not None
    differences = np.array([a - b for a, b in pairs])
    assert found.mean == pytest.approx(differences.mean(), abs=1e-12)
    if differences.std() > 1e-9:  # scipy warns of equal ones
        expected = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
        assert found.interval == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_only_shared_pairs_count() -> None:
    first = {("1", "a"): 0.5, ("2", "a"): 0.6, ("3", "a"): 0.9}
    second = {("1", "a"): 0.4, ("2", "a"): 0.5, ("3", "b"): 0.1}
    found = paired_difference(first, second)
    assert found is not None
    assert found.count == 2
    assert found.mean == pytest.approx(0.1)
    assert paired_difference(first, {("9", "a"): 0.1}) is None


def test_one_pair_says_nothing() -> None:
    found = paired_difference({1: 0.9}, {1: 0.1})
    assert found is not None
    assert found.interval is None
    assert found.verdict == "one pair: nothing can be said"


@pytest.mark.parametrize(
    ("first", "verdict"),
    [((0.7, 0.71, 0.72), "higher"), ((0.3, 0.31, 0.32), "lower"), ((0.5, 0.4, 0.7), "not told")],
)
def test_a_verdict_needs_an_interval_without_zero(first: tuple[float, ...], verdict: str) -> None:
    found = paired_difference(dict(enumerate(first)), {0: 0.5, 1: 0.51, 2: 0.5})
    assert found is not None
    assert found.verdict.startswith(verdict)
