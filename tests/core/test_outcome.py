"""Retry policies, and what a failed attempt comes to."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import Invalid
from holdfast.core.model import Job, Options, Retry, State
from holdfast.core.outcome import (
    STRATEGIES,
    check_retry,
    doubt_text,
    failure_event,
    never_retried,
    next_delay,
    retry_at,
)

NOW = 1_700_000_000_000
retries = st.builds(
    Retry,
    strategy=st.sampled_from(STRATEGIES),
    initial_ms=st.integers(0, 10**12),
    factor=st.floats(1, 1e6),
    cap_ms=st.integers(0, 10**12),
    jitter=st.booleans(),
)


def failing(attempt: int = 1, **retry) -> Job:
    return Job(
        id="0192f3a4-5b6c-7d8e-9f01-23456789abcd",
        type="video.make",
        created_at=NOW,
        state=State.ACTIVE,
        attempt=attempt,
        options=Options(retry=Retry(**retry)),
    )


# How long to wait.


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        (Retry(strategy="none", jitter=False), [0, 0, 0]),
        (Retry(strategy="constant", initial_ms=700, jitter=False), [700, 700, 700]),
        (Retry(strategy="linear", initial_ms=700, jitter=False), [700, 1_400, 2_100]),
        (Retry(strategy="polynomial", initial_ms=100, factor=2.0, jitter=False), [100, 400, 900]),
        (Retry(strategy="exponential", initial_ms=700, jitter=False), [700, 1_400, 2_800]),
        (Retry(strategy="exponential", initial_ms=100, factor=3.0, jitter=False), [100, 300, 900]),
        (Retry(strategy="exponential", initial_ms=100, factor=1.0, jitter=False), [100, 100, 100]),
        (Retry(strategy="constant", initial_ms=700, cap_ms=500, jitter=False), [500, 500, 500]),
        (Retry(strategy="linear", initial_ms=700, cap_ms=1_500, jitter=False), [700, 1_400, 1_500]),
        (Retry(strategy="exponential", initial_ms=700, cap_ms=1_500, jitter=False), [700, 1_400, 1_500]),
    ],
)
def test_a_strategy_makes_its_row_of_delays(retry, delays):
    assert [next_delay(retry, failures) for failures in (1, 2, 3)] == delays


def test_the_default_waits_two_to_the_n_seconds_up_to_five_minutes():
    delays = [next_delay(Retry(jitter=False), failures) for failures in range(1, 11)]

    assert delays == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000]


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 5_000), (0.25, 7_500), (0.5, 10_000), (0.999999, 15_000)])
def test_jitter_spreads_a_delay_from_half_to_one_and_a_half(chance, delay):
    retry = Retry(strategy="constant", initial_ms=10_000)

    assert next_delay(retry, 1, chance) == delay


def test_without_jitter_chance_changes_nothing():
    retry = Retry(strategy="constant", initial_ms=10_000, jitter=False)

    assert {next_delay(retry, 1, chance) for chance in (0.0, 0.3, 0.9)} == {10_000}


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 4_000), (0.5, 8_000), (0.75, 8_000)])
def test_the_cap_holds_before_the_jitter_and_again_after_it(chance, delay):
    retry = Retry(strategy="constant", initial_ms=20_000, cap_ms=8_000)

    assert next_delay(retry, 1, chance) == delay


@settings(deadline=None)
@given(retries, st.integers(1, 2**63), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_whole_and_between_zero_and_the_cap(retry, failures, chance):
    delay = next_delay(check_retry(retry), failures, chance)

    assert isinstance(delay, int)
    assert 0 <= delay <= retry.cap_ms


@settings(deadline=None)
@given(retries, st.integers(1, 2_000))
def test_without_jitter_delays_never_shrink(retry, failures):
    steady = Retry(
        strategy=retry.strategy,
        initial_ms=retry.initial_ms + 1,
        factor=retry.factor,
        cap_ms=retry.cap_ms,
        jitter=False,
    )

    assert next_delay(steady, failures) <= next_delay(steady, failures + 1)


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
@pytest.mark.parametrize("failures", [1_023, 1_024, 1_025, 10**6, 2**63])
def test_a_huge_count_of_failures_comes_to_the_cap(strategy, failures):
    assert next_delay(Retry(strategy=strategy, jitter=False), failures) == 300_000


def test_no_delay_stays_no_delay_however_often_it_fails():
    assert next_delay(Retry(initial_ms=0, jitter=False), 2_000) == 0


@pytest.mark.parametrize(("attempt", "wait_ms"), [(1, 1_000), (2, 2_000), (4, 8_000)])
def test_a_job_waits_by_its_failures_with_this_one(attempt, wait_ms):
    assert retry_at(failing(attempt, jitter=False), NOW, 0.0) == NOW + wait_ms


# Which policies make sense.


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sensible_policy_is_returned(strategy):
    retry = Retry(retries=0, strategy=strategy, initial_ms=0, factor=1.0, cap_ms=0)

    assert check_retry(retry) is retry


@pytest.mark.parametrize(
    ("retry", "message"),
    [
        (Retry(retries=-1), "retries=-1 is invalid; give the number of retries, or 0"),
        (
            Retry(strategy="fibonacci"),
            "'fibonacci' is unknown; choose one of none, constant, linear, polynomial",
        ),
        (Retry(strategy=""), "'' is unknown"),
        (Retry(initial_ms=-1), "can't be negative"),
        (Retry(cap_ms=-1), "can't be negative"),
        (Retry(initial_ms=10**15), "initial_ms=1000000000000000 is longer than 100 years"),
        (Retry(cap_ms=10**15), "cap_ms=1000000000000000 is longer than 100 years"),
        (Retry(initial_ms=1.5), "initial_ms=1.5 is invalid; give a whole number of milliseconds"),  # type: ignore[arg-type]
        (Retry(initial_ms="1"), "initial_ms='1' is invalid; give a whole number of milliseconds"),  # type: ignore[arg-type]
        (Retry(cap_ms=True), "cap_ms=True is invalid; give a whole number of milliseconds"),
        (Retry(factor="2"), "factor '2' is invalid; give a finite number of 1 or more"),  # type: ignore[arg-type]
        (Retry(jitter="no"), "jitter='no' is invalid; give True or False"),  # type: ignore[arg-type]
        (Retry(never=5), "never=5 is invalid; give a list of error type names"),  # type: ignore[arg-type]
        (Retry(never=("ValueError", 5)), "never=('ValueError', 5) is invalid; give a list of error type names"),  # type: ignore[arg-type]
        (Retry(factor=0.99), "factor 0.99 is invalid; give a finite number of 1 or more"),
        (Retry(factor=-2.0), "factor -2.0 is invalid; give a finite number of 1 or more"),
        (Retry(factor=math.nan), "factor nan is invalid; give a finite number of 1 or more"),
        (Retry(factor=math.inf), "factor inf"),
    ],
)
def test_a_policy_without_sense_is_refused_in_words(retry, message):
    with pytest.raises(Invalid) as refused:
        check_retry(retry)

    assert message in str(refused.value)


# Which errors are final.


@pytest.mark.parametrize(
    ("never", "error_type", "final"),
    [
        ((), "ValueError", False),
        (("ValueError",), "ValueError", True),
        (("ValueError",), "ValueErrors", False),
        (("ValueError",), "valueerror", False),
        (("Value",), "ValueError", False),
        (("auth.*",), "auth.expired", True),
        (("auth.*",), "auth.token.expired", True),
        (("auth.*",), "authx", False),
        (("auth.*",), "auth", False),
        (("auth.*",), "oauth.expired", False),
        (("auth*",), "auth.expired", False),
        (("KeyError", "auth.*"), "auth.expired", True),
        (("KeyError", "auth.*"), "KeyError", True),
        (("a.c",), "abc", False),
    ],
)
def test_an_error_is_final_by_its_whole_name_or_a_prefix_that_ends_in_dot_star(never, error_type, final):
    assert never_retried(Retry(never=never), error_type) == final


@pytest.mark.parametrize(
    ("retries", "outcomes"),
    [
        (0, ["exhaust"]),
        (1, ["fail", "exhaust"]),
        (3, ["fail", "fail", "fail", "exhaust", "exhaust"]),
    ],
)
def test_so_many_retries_mean_one_attempt_more(retries, outcomes):
    attempts = range(1, len(outcomes) + 1)

    assert [failure_event(failing(attempt, retries=retries), "Boom") for attempt in attempts] == outcomes


@pytest.mark.parametrize(
    ("job", "retryable"),
    [
        (failing(retries=3), False),
        (failing(retries=3, strategy="none"), True),
        (failing(retries=3, never=("Boom",)), True),
        (failing(retries=3, never=("Bo.*", "Boom")), True),
    ],
    ids=["the error says so", "no strategy", "listed", "listed among others"],
)
def test_a_final_error_leaves_no_try_at_the_first_attempt(job, retryable):
    assert failure_event(job, "Boom", retryable=retryable) == "exhaust"


def test_one_effect_in_doubt_and_several_are_told_in_whole_sentences():
    assert doubt_text("j-1", ["pay#k1"]).startswith(
        "pay#k1 may have happened: it started, and no result was recorded; check whether it did, then run "
        "holdfast resolve j-1 --step 'pay#k1' with"
    )
    assert doubt_text("j-1", ["pay#k1", "pay#k2"]).startswith(
        "pay#k1, pay#k2 may have happened: they started, and no result was recorded; check whether they did, then "
        "run holdfast resolve j-1 --step"
    )
