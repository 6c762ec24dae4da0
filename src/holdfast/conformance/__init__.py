"""The laws of the engine contract as tests, shipped with the library: one file each, run on any store.

    pytest --pyargs holdfast.conformance --engine sqlite:///jobs.db --engine memory:

The URL only chooses the kind of store: every test gets its own empty store (`Engine.scratch`). Name your own engine by
its class, `--engine package.module:Class`, followed by `=URL` if its `guarantees.url` isn't right.
`--examples N` sets how many random lives `test_differential` compares with the memory engine.

Nothing else in Holdfast may import this: only tests need it, and it needs pytest and hypothesis.
"""
