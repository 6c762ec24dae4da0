"""Apps on every engine, with large values."""

import asyncio

import pytest

from holdfast import App

STORES = ("memory", "file", "sqlite", "postgres")


@pytest.fixture(params=STORES)
def url(request, tmp_path):
    """A new store of each engine that keeps blobs by itself."""
    if request.param == "memory":
        return "memory:"
    if request.param == "file":
        return f"file:{tmp_path}/jobs.json"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return request.getfixturevalue("postgres_store")


@pytest.fixture
def app(url):
    made = App(url)
    yield made
    asyncio.run(made.close())


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Results that can't be stored are held in a folder of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HOLDFAST_BLOBS", raising=False)
    return tmp_path / "home"
