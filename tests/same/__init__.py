"""A record of behaviour: fixed, seeded federations of which every number and every final model is compared by commit.

`make same` prints the record of the working tree; `make same BASE=COMMIT` makes that of the commit as well, on the same
machine, and says where they differ. Federations are run by commands alone, so that modules may move between the two;
`names.py` gives fields one name in the record, whatever a commit calls them. Begin with `__main__.py`.
"""
