"""Which blob store a URL means. Must not open anything else."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.blobs.folder import FolderBlobs
from holdfast.blobs.store import BlobStore, shown
from holdfast.core.errors import Invalid

FORMS = "a folder, file:///folder, s3://bucket/folder, gs://bucket/folder or az://container/folder"


def blob_store(url: str) -> BlobStore:
    """The blob store of a URL, or of a plain folder. Nothing is created."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if not url or (scheme and not scheme.isascii()):
        raise Invalid(f"blobs={url!r} is not the URL of a blob store; give {FORMS}")
    if scheme in ("", "file"):
        path = Path(unquote(urlsplit(url).path) if scheme else url.removeprefix("file:"))
        if path.is_file() or "\0" in url:
            raise Invalid(f"blobs={url!r} is a file; give {FORMS}")
        return FolderBlobs(path)
    if scheme in ("sqlite", "postgresql", "postgres", "redis", "rediss", "valkey", "memory"):
        raise Invalid(f"blobs={shown(url)!r} is the URL of a store for jobs; give {FORMS}")
    try:
        from holdfast.blobs.objects import ObjectBlobs
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "obstore":
            raise
        raise Invalid(f"{scheme}: obstore is not installed; run pip install 'holdfast-jobs[blobs]'") from None
    return ObjectBlobs(url)
