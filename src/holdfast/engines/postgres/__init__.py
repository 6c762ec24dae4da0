"""The Postgres engine: many machines on one database. `engine` is the contract, `queries.sql` every statement."""

from holdfast.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
