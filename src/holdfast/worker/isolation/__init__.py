"""Steps and jobs in separate processes (`isolate="process"`): a crash fails only the step or job in that process.

    import_target     where a function is defined, so that another process can import it
    messages          the messages between a worker and such a process
    child             that process: imports the function, runs it, returns its result
    process           the worker's side of one: start it, talk to it, end it
    pool              several of them, started in advance and reused

    child_job         a whole job in such a process: the attempt, its steps and its waits
    child_reports     the progress and log lines that such a process sends
    remote_engine     the engine there: it asks the worker for each call to the store
    isolated_attempt  the worker's side of such a job: its lease, its end, and the calls that it asks for

Never pickle: arguments and results are sent as the canonical JSON text that is recorded, errors as data.
"""
