"""TLS to Postgres. The server of the tests is built without it, so a proxy before it speaks it, with a certificate of
the test's own: what is tried here is our side, the URL's options and the driver under them.
"""

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.conformance.given import StoreClock, change, claimed
from holdfast.core.errors import StoreError
from holdfast.core.model import Applied, Event, Presence
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.topics import job_topic
from tests.support.proxy import Proxy

CLOCK = StoreClock(settable=False)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority's certificate, a server's signed by it, and a stranger's authority."""
    if shutil.which("openssl") is None:
        pytest.skip("a certificate needs `openssl`")
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for name in ("ca", "stranger"):
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    openssl(
        *new, "-keyout", "server.key", "-out", "server.pem", "-subj", "/CN=server", "-CA", "ca.pem", "-CAkey", "ca.key",
        "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
    )  # fmt: skip
    return folder


@pytest.fixture
def url(postgres_store: str, certificates: Path) -> Iterator[str]:
    """A store whose server wants TLS."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    with Proxy(urlsplit(postgres_store).port or 5432, tls) as proxy:
        yield proxy.through(postgres_store)


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_every_connection_is_under_tls(url: str, certificates: Path, run: Any, mode: str):
    async def live() -> None:
        engine = PostgresEngine(f"{url}&sslmode={mode}&sslrootcert={certificates / 'ca.pem'}")
        await engine.open()
        held = await claimed(engine, CLOCK)
        await engine.beat(Presence(worker="w-1"))
        mark = await engine.wait([job_topic(held.id)], 0)  # the lasting connection listens, too
        [done] = await engine.commit([change(CLOCK, held, Event.COMPLETE)])
        assert isinstance(done, Applied)
        await engine.wait([job_topic(held.id)], 5, mark)
        await engine.close()

    run(live())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("sslmode=verify-full&sslrootcert={folder}/stranger.pem", "certificate"),
        ("sslmode=verify-ca&sslrootcert={folder}/stranger.pem", "certificate"),
        ("sslmode=verify-full&sslrootcert={folder}/missing.pem", "check sslrootcert"),
        ("sslmode=disable", "can't be reached"),
    ],
)
def test_what_cant_be_trusted_is_refused_in_one_line(url: str, certificates: Path, run: Any, options: str, says: str):
    engine = PostgresEngine(f"{url}&{options.format(folder=certificates)}")

    with pytest.raises(StoreError, match=says) as told:
        run(engine.open())

    assert "\n" not in str(told.value)


def test_a_name_that_is_not_the_servers_is_refused(url: str, certificates: Path, run: Any):
    named = url.replace("@127.0.0.1:", "@localhost:")  # the certificate is for the number
    engine = PostgresEngine(f"{named}&sslmode=verify-full&sslrootcert={certificates / 'ca.pem'}")

    with pytest.raises(StoreError, match="localhost"):
        run(engine.open())
