"""Derived names: the same in every process for ever, so their values are written down here."""

from urllib.parse import unquote
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import Invalid
from holdfast.core.keys import (
    KEY_LIMIT,
    check_id,
    check_queue,
    check_type,
    derived_id,
    digest,
    idempotency_key,
    new_id,
    step_path,
)

JOB_ID = "0192f3a4-5b6c-7d8e-9f01-23456789abcd"
times = st.integers(0, 2**48 - 1)
random_bits = st.integers(0, 2**80 - 1)
ids = st.builds(new_id, times, random_bits)
texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("/#% \n:"), max_size=KEY_LIMIT)
calls = st.tuples(texts, texts, st.integers(1, 12))
"""A step's name, its key, and which equal call it is."""


# Ids.


@pytest.mark.parametrize(
    ("now", "bits", "expected"),
    [
        (1_700_000_000_000, 0, "018bcfe5-6800-7000-8000-000000000000"),
        (1_700_000_000_000, 2**80 - 1, "018bcfe5-6800-7fff-bfff-ffffffffffff"),
        (0x0192F3A45B6C, 0x123456789ABCDEF01234, "0192f3a4-5b6c-78d1-9678-9abcdef01234"),
        (0, 1, "00000000-0000-7000-8000-000000000001"),
    ],
)
def test_an_id_is_made_of_time_and_the_given_bits(now, bits, expected):
    assert new_id(now, bits) == expected


@settings(deadline=None)
@given(times, random_bits)
def test_an_id_is_a_uuid_of_version_7(now, bits):
    uuid = UUID(new_id(now, bits))

    assert (uuid.version, uuid.variant, uuid.int >> 80) == (7, RFC_4122, now)
    assert check_id(str(uuid)) == str(uuid)


@settings(deadline=None)
@given(st.lists(times, min_size=2, unique=True), st.data())
def test_ids_sort_by_time_whatever_the_bits(moments, data):
    made = [new_id(now, data.draw(random_bits)) for now in sorted(moments)]

    assert made == sorted(made)


@settings(deadline=None)
@given(times, st.sets(st.integers(0, 2**74 - 1), min_size=2, max_size=2))
def test_74_random_bits_tell_ids_of_one_moment_apart(now, two):
    assert len({new_id(now, bits) for bits in two}) == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("undo", "0192f3a4-5b6c-76c7-8b45-83454d97dda8"),
        ("draw#1", "0192f3a4-5b6c-7c57-898d-3c01786f8783"),
    ],
)
def test_a_derived_id_is_the_same_whoever_works_it_out(name, expected):
    assert derived_id(JOB_ID, name) == expected


@settings(deadline=None)
@given(ids, texts)
def test_a_derived_id_is_an_id_and_sorts_beside_its_parent(parent, name):
    child = UUID(derived_id(parent, name))

    assert (child.version, child.variant) == (7, RFC_4122)
    assert child.int >> 80 == UUID(parent).int >> 80
    assert str(child) != parent


@settings(deadline=None)
@given(st.sets(st.tuples(ids, texts), min_size=2, max_size=20))
def test_derived_ids_dont_collide(pairs):
    assert len({derived_id(parent, name) for parent, name in pairs}) == len(pairs)


# Digests and idempotency keys.


@pytest.mark.parametrize(
    ("given_texts", "expected"),
    [
        (("",), "ba768b331fd86cec803be04e56ab2b3d"),
        (("a",), "4162fddd39a3e4225e8e2392eced237f"),
        (("a", "b"), "facdde7abf1eac5b301273ab2e282f79"),
    ],
)
def test_a_digest_is_the_same_in_every_process(given_texts, expected):
    assert digest(*given_texts) == expected


def test_an_idempotency_key_depends_on_job_and_step_and_nothing_else():
    assert idempotency_key(JOB_ID, "draw#1") == "946b36d9b228cdedebd08655d6e7787f"
    assert idempotency_key(JOB_ID, "draw#2") != idempotency_key(JOB_ID, "draw#1")
    assert idempotency_key(derived_id(JOB_ID, "undo"), "draw#1") != idempotency_key(JOB_ID, "draw#1")


# Step paths.


@pytest.mark.parametrize(
    ("parent", "name", "key", "nth", "expected"),
    [
        ("", "send", "order-42", 1, "send#order-42"),
        ("", "send", "order-42", 2, "send#order-42#2"),
        ("", "send", "", 1, "send#"),
        ("chapter#7", "draw", "a/b", 2, "chapter#7/draw#a%2Fb#2"),
        ("", "send", "a#2", 1, "send#a%232"),
        ("", "send", "50%", 1, "send#50%25"),
        ("", "send", "two words", 1, "send#two words"),
        ("", "send", "line\nbreak", 1, "send#line%0Abreak"),
        ("", "send", "a:b,c=d+e@f", 1, "send#a:b,c=d+e@f"),
        ("", "send", "Müller", 1, "send#M%C3%BCller"),
        ("", "näme/x#y", "k", 1, "n%C3%A4me%2Fx%23y#k"),
        ("", "send", "x" * 80, 1, f"send#{'x' * 80}"),
        ("", "send", "x" * 81, 1, "send#*5b462f7b15f39d4e0aee5b64697ba1f4"),
    ],
)
def test_a_step_path_reads_as_written_down(parent, name, key, nth, expected):
    assert step_path(parent, name, key, nth) == expected


def path_of(levels: list[tuple[str, str, int]]) -> str:
    path = ""
    for name, key, nth in levels:
        path = step_path(path, name, key, nth)
    return path


@settings(deadline=None)
@given(st.lists(calls, min_size=1, max_size=4))
def test_a_step_path_can_be_read_back(levels):
    parts = [level.split("#") for level in path_of(levels).split("/")]

    read = [(unquote(name), unquote(key), int(nth[0]) if nth else 1) for name, key, *nth in parts]
    assert read == levels


@settings(deadline=None)
@given(st.lists(st.lists(calls, min_size=1, max_size=3), min_size=2, max_size=6, unique_by=tuple))
def test_different_calls_have_different_paths(several):
    assert len({path_of(levels) for levels in several}) == len(several)


@settings(deadline=None)
@given(st.sets(st.text(min_size=1, max_size=20), min_size=2, max_size=5))
def test_long_keys_stay_different_and_short(endings):
    paths = {step_path("", "send", "x" * KEY_LIMIT + ending) for ending in endings}

    assert len(paths) == len(endings)
    assert all(len(path) < KEY_LIMIT for path in paths)


def test_a_long_key_doesnt_meet_the_short_key_that_is_its_hash():
    long = "x" * (KEY_LIMIT + 1)

    assert step_path("", "send", long) != step_path("", "send", digest(long))


# What a name may look like.

TYPES = ["video", "a", "video.make", "make_video", "retry.test.max-attempts", "v2.make", "a" * 255]
NOT_TYPES = ["", "Video", "2video", "_x", "-x", ".a", "a.", "a..b", "a.2b", "a b", "a/b", "vidéo", "a\n", "a" * 256]
QUEUES = ["default", "video", "1", "a.b-c", "0-0", "a" * 128]
NOT_QUEUES = ["", "-a", ".a", "Video", "a_b", "a b", "a/b", "a:b", "a\n", "é", "a" * 129]
NOT_IDS = ["", "42", JOB_ID.upper(), JOB_ID.replace("-", ""), f"{{{JOB_ID}}}", f"{JOB_ID}\n", f"{JOB_ID}0", JOB_ID[:-1]]


@pytest.mark.parametrize(
    ("check", "text"),
    [
        *((check_type, text) for text in TYPES),
        *((check_queue, text) for text in QUEUES),
        (check_id, JOB_ID),
    ],
)
def test_a_good_name_is_returned(check, text):
    assert check(text) == text


@pytest.mark.parametrize(
    ("check", "text", "example"),
    [
        *((check_type, text, "video.make") for text in NOT_TYPES),
        *((check_queue, text, "video") for text in NOT_QUEUES),
        *((check_id, text, "0192f3a4-5b6c-7d8e-9f01-23456789abcd") for text in NOT_IDS),
    ],
)
def test_a_bad_name_is_refused_with_an_example(check, text, example):
    with pytest.raises(Invalid) as refused:
        check(text)

    assert str(refused.value).startswith(repr(text))
    assert str(refused.value).endswith(example)


def test_texts_are_told_apart_however_they_are_cut():
    assert len({digest("a", "b"), digest("ab"), digest("a\nb"), digest("a", "", "b"), digest("1:a1:b")}) == 5
