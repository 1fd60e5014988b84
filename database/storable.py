"""Texts from outside as PostgreSQL can store them."""


def storable(text: object, longest: int) -> str:
    """At most so many characters, without NUL and halves of surrogate pairs; what is no text as its text, None empty.

    A provider's JSON may hold any of these, and one of them would keep back all that is written with it.
    """
    shown = "" if text is None else str(text)
    return shown[:longest].replace("\x00", "").encode(errors="replace").decode()
