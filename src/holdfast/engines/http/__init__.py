"""A store behind a Holdfast server: reads over HTTP. `jobs/remote` acts through it."""

from holdfast.engines.http.engine import HttpEngine as HttpEngine
