"""What the tests of the Postgres engine share."""

from holdfast.engines.postgres import PostgresEngine


async def opened(url: str) -> PostgresEngine:
    """An engine on this store, open."""
    engine = PostgresEngine(url)
    await engine.open()
    return engine
