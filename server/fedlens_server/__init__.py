"""The server: enrols clients, gives them assignments, and turns their updates into a model, round by round.

    process   daemon, config, init, clock   sockets, signals, the operator's files
    HTTP      http/                         decode a request, call the engine, encode the response
    engine    engine/                       all decisions, without sockets
    methods   methods/, planning/           numbers only: from updates to a state
    storage   store/                        SQLite and a folder of blobs
    log       telemetry/                    events, and what counts and times

Each layer calls only those below it. Requests are answered from a view in memory, which changes on the store's writing
thread alone, after a commit.
"""
