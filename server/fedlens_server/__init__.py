"""The server: enrols clients, tells them what to do, and turns their updates into a model, round by round.

    process   daemon, listening, config, init                            sockets, signals, the operator's files
    HTTP      app, client_api, admin_api, uploads, downloads, long_poll  decode, call one function, encode
              service, driver                                            what requests share; who carries rounds on
    engine    rounds                                                     everything decided, without a socket
              lifecycle, opening, aggregation, updates, check_in, ...    one concern each, on `federation`
    methods   methods/                                                   numbers only: from updates to a state
    storage   store/                                                     SQLite and a folder of blobs

Each layer calls only those below it. `federation` is the view in memory that requests are answered from; it changes
on the store's writing thread alone, once a commit is on disk.
"""
