"""The lease model: random interleavings of everything that touches a job's rows, on a real PostgreSQL.

`actor.py` runs the product's own code one statement at a time, `machine.py` draws what happens next, `snapshot.py`
reads what is committed, and `invariants*.py` say what must hold of it. `mutants.py` shows that the model can fail.
"""
