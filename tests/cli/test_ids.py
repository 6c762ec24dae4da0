"""Ids as people type them: whole, or a unique start or end."""

from holdfast.core.keys import new_id
from holdfast.core.model import State
from holdfast.jobs import ids as ids_module
from holdfast.jobs.service import JobRequest, Jobs
from tests.cli.conftest import Cli
from tests.cli.stores import in_store


def submitted(cli: Cli, *ids: str) -> None:
    """Jobs with these ids."""

    async def work(jobs: Jobs) -> None:
        await jobs.submit([JobRequest(type="draw") for _ in ids], ids=ids)

    in_store(cli.path, work)


def test_the_end_that_lists_show_finds_the_job(cli: Cli, ids: dict[State, str]):
    for id in ids.values():
        assert id[-8:] in cli.ok("jobs")
        assert cli.json("status", id[-8:])["id"] == id
        assert cli.json("status", "…" + id[-8:].upper())["id"] == id


def test_a_unique_start_of_six_characters_finds_the_job(cli: Cli):
    one, two = new_id(1_700_000_000_000, 1), new_id(1_760_000_000_000, 2)
    submitted(cli, one, two)

    assert one[:6] != two[:6]
    assert cli.json("status", one[:6])["id"] == one
    assert cli.json("status", two[:13])["id"] == two


def test_an_ambiguous_id_is_one_line_with_the_candidates(cli: Cli):
    one, two = new_id(1_700_000_000_000, 1), new_id(1_700_000_000_000, 2)
    submitted(cli, one, two)

    result = cli("cancel", one[:12])

    assert result.exit_code == 2
    assert one in result.stderr
    assert two in result.stderr
    assert result.stderr.count("\n") == 1
    assert cli.json("jobs", "--state", "available")["next"] is None
    assert len(cli.json("jobs", "--state", "available")["jobs"]) == 2


def test_many_candidates_are_not_all_told(cli: Cli):
    submitted(cli, *(new_id(1_700_000_000_000, n) for n in range(20)))

    line = cli("show", new_id(1_700_000_000_000, 0)[:12]).stderr

    assert line.count("available") == ids_module.CANDIDATES
    assert "and more" in line


def test_the_walk_for_an_end_is_bounded(cli: Cli, monkeypatch):
    submitted(cli, *(new_id(1_700_000_000_000 + n, n << 32 | n) for n in range(1, 30)))
    monkeypatch.setattr(ids_module, "LOOK_BACK", 10)
    monkeypatch.setattr(ids_module, "PAGE_LIMIT", 5)
    find, pages = Jobs.__init__, []

    def spying(self, engine, *more):
        find(self, engine, *more)
        original = engine.find

        async def counted(where, after="", limit=5):
            pages.append(after)
            return await original(where, after, limit)

        engine.find = counted

    monkeypatch.setattr(Jobs, "__init__", spying)

    assert cli("show", "00000001").exit_code == 1  # the oldest: beyond the bound
    assert len(pages) == 1 + 2  # one look by the start, two pages from the newest


def test_a_job_named_twice_is_changed_once(cli: Cli, ids: dict[State, str]):
    id = ids[State.AVAILABLE]

    assert cli.ok("cancel", id, id[-8:]) == f"cancelled {id[-8:]}\n"
