"""What the tests of the Redis engine share."""

from holdfast.engines.redis import RedisEngine


async def opened(url: str) -> RedisEngine:
    """An engine on this store, open."""
    engine = RedisEngine(url)
    await engine.open()
    return engine
