"""`holdfast export` and `import`: one job as a readable file. Must not know the file's format (`jobs.run_file`)."""

import os
import sys
from pathlib import Path

import click

from holdfast import __version__
from holdfast.blobs.local import LocalFile, note_file
from holdfast.cli.errors import echo
from holdfast.cli.open_store import refuse_server, run_in_store
from holdfast.cli.options import job_ids, url_option
from holdfast.cli.person import whoami
from holdfast.cli.render.screen import console
from holdfast.core.errors import Invalid, Refused
from holdfast.core.lifecycle import standing
from holdfast.core.model import Job
from holdfast.jobs.ids import find_id
from holdfast.jobs.run_file import FILE_LIMIT, collect_run, dump_run, files_of, insert_run, parse_run
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.text import plural, short_id


@click.command(
    "export",
    epilog="""\b
Examples:
  holdfast export 4f2a91bc > run.json
  holdfast export 4f2a91bc --output run.json

\b
The file has the job with its arguments, history, steps and log, unchanged: check it for
secrets before you share it. Nothing in the file is executed, now or when it is imported.
""",
)
@click.argument("id", shell_complete=job_ids())
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Write to this new file.")
@url_option
def export_run(id: str, output: Path | None, url: str | None) -> None:
    """Write one run to a readable JSON file."""

    async def work(jobs: Jobs) -> tuple[str, int]:
        run = await collect_run(jobs, await find_id(jobs, id))
        files = files_of(run)
        if files and output is not None:
            folder = files_beside_run(output)
            folder.mkdir(mode=0o700, exist_ok=True)
            for one in files:
                await jobs.engine.blobs.save(one, folder / one.sha256)
        return dump_run(run, await jobs.engine.now(), __version__), len(files)

    text, files = run_in_store(url, work)
    if output is None:
        click.echo(text, nl=False)
        if files:
            echo(
                f"left out {plural(files, 'file')} that the run names; use --output FILE to export them, too", err=True
            )
        return
    _write_new(output, text)
    echo(f"wrote {output}" + (f" and {plural(files, 'file')} to {files_beside_run(output)}" if files else ""))


def files_beside_run(path: Path) -> Path:
    """Return the folder with the files that an exported run names, under their hashes."""
    return path.with_name(f"{path.name}.files")


@click.command(
    "import",
    epilog="""\b
Examples:
  holdfast import run.json --url sqlite:///look.db
  holdfast import run.json --review --url sqlite:///look.db
  ssh server holdfast export 4f2a91bc | holdfast import - --url sqlite:///look.db

\b
Nothing runs by itself: an unfinished job arrives in review, where `holdfast replay` makes it
continue after its last recorded step. The store is created if it doesn't exist.
""",
)
@click.argument("file", metavar="FILE")
@click.option("--review", is_flag=True, help="Put the job into review even if it has ended, so that you can replay it.")
@url_option
def import_run(file: str, review: bool, url: str | None) -> None:
    """Load an exported job into a store, to inspect and replay it."""
    refuse_server(url, "import")
    run = parse_run(_text_of(file), file)

    folder = files_beside_run(Path(file))
    held = [note_file(LocalFile(folder / one.sha256, one)) for one in files_of(run) if (folder / one.sha256).is_file()]

    async def work(jobs: Jobs) -> Job:
        job = await insert_run(jobs, run, whoami(), review=review)
        held.clear()  # until here the files stood for their content
        return job

    job = run_in_store(url, work, create=True)
    steps = f"{plural(len(run.steps), 'step')} recorded"
    console().print(f"imported {job.type} {short_id(job.id)}: it is {standing(job.state)}, {steps}")


def _text_of(file: str) -> str:
    try:
        raw = sys.stdin.buffer.read(FILE_LIMIT + 1) if file == "-" else _read(Path(file))
    except OSError as error:
        raise Invalid(f"{file}: can't be read: {error.strerror}") from None
    if len(raw) > FILE_LIMIT:
        raise Invalid(f"{file}: larger than {FILE_LIMIT // 1024**2} MiB, so it can't be an exported run")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{file}: not UTF-8 text; give a file that holdfast export wrote") from None


def _read(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(FILE_LIMIT + 1)


def _write_new(path: Path, text: str) -> None:
    """Write a file that only its owner can read. Never overwrite one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise Refused(f"{path} exists already and was not changed; name another file") from None
    except OSError as error:
        raise Refused(f"{path}: can't be written: {error.strerror}") from None
