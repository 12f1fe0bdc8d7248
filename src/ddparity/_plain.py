"""Text that came from outside, made fit for a terminal."""


def plain(text: str) -> str:
    """Return ``text`` on one line and without control characters, escape sequences among them.

    Names and values in a trace may have been written by anybody; nothing in them should speak to a terminal.
    """
    return "".join(char if char.isprintable() else " " for char in text)
