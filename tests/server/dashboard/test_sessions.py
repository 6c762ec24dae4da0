"""Logging in from a browser: what the cookie is, what the page may know, and what a stranger sees."""

from holdfast.jobs.tokens import create_token
from holdfast.server.auth import COOKIE, CSRF_HEADER
from tests.server.clients import BASE, a_server, required

HTML = {"Accept": "text/html,application/xhtml+xml"}


async def token(server, *scopes: str) -> str:
    text, _ = await create_token((await server.open()).engine, "ada", scopes, by="test")
    return text


async def test_a_browser_without_a_token_is_sent_to_the_login_page_and_back():
    async with a_server(auth=required()) as (_, client):
        answer = await client.get("/jobs?state=review", headers=HTML)

        assert answer.status_code == 303
        assert answer.headers["location"] == "/login?next=%2Fjobs%3Fstate%3Dreview"
        assert (await client.get("/login")).status_code == 200
        assert (await client.get("/static/app.js")).status_code == 200
        assert (await client.get("/jobs")).status_code == 401, "a program is told, not redirected"


async def test_a_token_becomes_a_cookie_that_no_script_and_no_other_site_can_use():
    async with a_server(auth=required()) as (server, client):
        text = await token(server, "read")

        answer = await client.post("/login", json={"token": f" {text}\n"})

        cookie = answer.headers["set-cookie"]
        assert answer.status_code == 200
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        assert (await client.get("/", headers=HTML)).status_code == 200


async def test_a_wrong_token_sets_no_cookie():
    async with a_server(auth=required()) as (_, client):
        for given in ("", "hf_nothing", "x" * 3_000):
            answer = await client.post("/login", json={"token": given})
            assert answer.status_code == 401
            assert "set-cookie" not in answer.headers
        assert (await client.post("/login", content=b"x" * 9_000)).status_code in (413, 415)


async def test_the_session_says_what_the_token_may_do():
    async with a_server(auth=required()) as (server, client):
        await client.post("/login", json={"token": await token(server, "read", "act")})

        session = (await client.get("/session")).json()

        assert session["name"] == "ada"
        assert session["scopes"] == ["read", "act"]


async def test_a_change_by_cookie_needs_the_value_from_the_session():
    async with a_server(auth=required()) as (server, client):
        await client.post("/login", json={"token": await token(server, "read", "act")})
        csrf = (await client.get("/session")).json()["csrf"]
        path = "/api/v1/jobs/01890000-0000-7000-8000-000000000000/cancel"

        assert (await client.post(path, json={})).status_code == 403
        assert (await client.post(path, json={}, headers={CSRF_HEADER: csrf})).status_code == 404


async def test_logging_out_forgets_the_cookie():
    async with a_server(auth=required()) as (server, client):
        await client.post("/login", json={"token": await token(server, "read")})

        await client.post("/logout")

        assert COOKIE not in client.cookies
        assert (await client.get("/session")).status_code == 401


async def test_pages_and_files_have_a_strict_policy_and_fit_where_the_app_is_mounted():
    async with a_server() as (_, client):
        page = await client.get("/jobs/01890000")
        script = await client.get("/static/app.js")

        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert 'src="/static/app.js' in page.text
        assert "BASE" not in page.text
        assert script.headers["content-type"].startswith("text/javascript")
        assert "immutable" in script.headers["cache-control"]
        assert (await client.get("/static/index.html")).status_code == 404
        assert (await client.get("/static/nothing.js")).status_code == 404
        assert client.base_url == BASE
