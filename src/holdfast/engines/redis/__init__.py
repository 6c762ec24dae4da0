"""The Redis engine: one server or cluster, many machines; also Valkey."""

from holdfast.engines.redis.engine import RedisEngine

__all__ = ["RedisEngine"]
