"""Jobs over HTTP. Imports core, jobs and the engine contract, never the worker: a server runs no jobs.

    app.Server        the ASGI application: one request at a time through Host, token, route, limits, handler
    routes.Route      method, path, handler, the scope that a token needs, the largest body
    routes.Family     the routes under one prefix, and how their errors look
    call.Call         what a handler gets: the request with jobs, who asks, and a bounded body
    problems.Problem  an error as status, code and words; raise it, or any error of ours
    streams           Server-Sent Events with bounds, which end when the server stops
    run               uvicorn with limits for slow and greedy clients

How a folder plugs in (`server/ojs`, `server/api`, `server/dashboard`): it defines a `Family`, such as

    ROUTES = (
        Route("GET", "/api/v1/jobs/{id}", get_job, "read"),
        Route("POST", "/api/v1/jobs", submit, "submit", body_bytes=BODY_BYTES),
    )
    API = Family("/api", ROUTES)      # Family("/ojs", ROUTES, show=show_error) renders errors its own way

and `server/families.py` lists it. A handler is `async def get_job(call: Call) -> Response`. It reads `call.jobs`,
`call.path_params`, `await call.read(SomeStruct)` and `call.by`, and returns `json_reply(value)`. It raises errors.
"""
