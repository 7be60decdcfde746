"""The programs that run inside of a sandbox. They import the standard library and one another, and no more.

`start.py` is trusted, as is `judge.py`; `subject.py` is until it has loaded the model's program.
"""
