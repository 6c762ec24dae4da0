"""The laws of the engine contract as tests, shipped with the library: one file each, run on any store.

    pytest --pyargs holdfast.conformance --engine sqlite:///jobs.db --engine memory:

The URL only says which kind of store: every test gets an empty one of its own (`Engine.scratch`). An engine of your
own is named by its class, `--engine package.module:Class`, with `=URL` behind it when its `guarantees.url` won't do.
`--examples N` sets how many random lives `test_differential` compares with the memory engine.

Must not be imported by anything else of ours: only tests need it, and it needs pytest and hypothesis.
"""
