"""The pretend provider: it counts what was called and what was made, and is as bad as it is told to be."""

import http.client
import json
import threading
import time
import urllib.request
from contextlib import closing
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest

from holdfast.core.errors import Invalid
from holdfast.testing import Provider


def post(
    provider: Provider, body: Any = None, key: str | None = None, path: str = "/charges", timeout: float = 5
) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    request = urllib.request.Request(provider.url + path, json.dumps(body).encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


def refused(provider: Provider, *args: Any) -> HTTPError:
    with pytest.raises(HTTPError) as raised:
        post(provider, *args)
    raised.value.close()
    return raised.value


def test_each_call_is_an_effect_and_is_answered_by_what_was_asked():
    with Provider() as provider:
        first, second, other = post(provider, {"usd": 5}), post(provider, {"usd": 5}), post(provider, {"usd": 6})
        assert first == second != other
        assert (provider.begun, provider.finished, len(provider.effects)) == (3, 3, 3)
        assert [call.body for call in provider.effects] == [{"usd": 5}, {"usd": 5}, {"usd": 6}]


def test_one_key_is_one_effect_and_gets_the_first_answer():
    numbers = iter(range(10))
    with Provider(answer=lambda call: {"id": next(numbers)}) as provider:
        assert post(provider, {"usd": 5}, "k") == post(provider, {"usd": 5}, "k") == {"id": 0}
        assert post(provider, {"usd": 5}, "k2") == {"id": 1}
        assert (provider.begun, len(provider.effects)) == (3, 2)


def test_a_key_with_another_body_is_refused():
    with Provider() as provider:
        post(provider, {"usd": 5}, "k")
        assert refused(provider, {"usd": 6}, "k").code == 400
        assert len(provider.effects) == 1


def test_a_key_whose_first_call_is_under_way_is_refused():
    with Provider(seconds=0.3) as provider:
        slow = threading.Thread(target=post, args=(provider, 1, "k"))
        slow.start()
        while provider.begun < 1:
            time.sleep(0.001)
        provider.seconds = 0
        assert refused(provider, 1, "k").code == 409
        slow.join()
        assert post(provider, 1, "k")
        assert len(provider.effects) == 1


def test_busy_and_broken_calls_make_nothing_and_leave_the_key_free():
    with Provider() as provider:
        provider.busy(retry_after=2.5)
        provider.fail(2, status=503)
        error = refused(provider, 1, "k")
        assert (error.code, error.headers["Retry-After"]) == (429, "2.5")
        assert [refused(provider, 1, "k").code, refused(provider, 1, "k").code] == [503, 503]
        assert provider.effects == []
        assert post(provider, 1, "k")
        assert [call.status for call in provider.calls] == [429, 503, 503, 200]


def test_a_dropped_call_has_made_something_or_not():
    with Provider() as provider:
        provider.drop()
        provider.drop(after_effect=True)
        for made in (0, 1):
            with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
                post(provider, 1, "k")
            assert len(provider.effects) == made
        assert post(provider, 1, "k")
        assert len(provider.effects) == 1, "the key remembers what the caller never heard"


def test_a_call_that_hangs_is_begun_and_not_finished_and_holds_up_no_end():
    with Provider() as provider:
        provider.hang()
        with pytest.raises(TimeoutError):
            post(provider, timeout=0.1)
        assert (provider.begun, provider.finished, provider.effects) == (1, 0, [])
        ended = time.monotonic()
    assert time.monotonic() - ended < 2


def test_calls_take_as_long_as_they_are_told_and_run_beside_each_other():
    with Provider(seconds=0.2) as provider:
        began = time.monotonic()
        threads = [threading.Thread(target=post, args=(provider, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 0.2 <= time.monotonic() - began < 1.2
        assert all(call.ended_at - call.began_at >= 0.19 for call in provider.calls)  # type: ignore[operator]


def test_a_connection_may_be_kept_open():
    with Provider() as provider:
        with closing(http.client.HTTPConnection(urlsplit(provider.url).netloc, timeout=5)) as connection:
            for _ in range(3):
                connection.request("POST", "/a", "text, no JSON")
                assert connection.getresponse().read()
        assert [call.body for call in provider.calls] == ["text, no JSON"] * 3


def test_a_provider_that_is_not_started_says_how():
    with pytest.raises(Invalid, match="with Provider"):
        assert Provider().url
