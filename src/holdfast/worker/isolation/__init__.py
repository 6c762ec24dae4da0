"""Steps and jobs in processes of their own (`isolate="process"`): what kills such a process fails one of them, no more.

    place     where a function stands, so that another process can import it
    wire      what the worker and such a process say to one another
    child     that process: imports the function, runs it, tells its result
    process   the worker's side of one: starting it, talking to it, ending it
    pool      so many of them, started ahead and used again

    host      a whole job in such a process: the attempt, its steps and its waits
    line      its engine there: each act is asked of the worker
    away      the worker's side of such a job: its lease, its end, and the acts it asks for

Never pickle: arguments and results cross as the canonical JSON text that is recorded, errors as data.
"""
