"""Headers of HTML pages and their files: a strict Content-Security-Policy. Must not know a page."""

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; media-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""Nothing from elsewhere, nothing inline, nothing from text."""

PAGE_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""What a page adds to the headers of every answer (`app.HEADERS`)."""

FILE_HEADERS = {**PAGE_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
"""The same for a file whose name changes with its content."""
