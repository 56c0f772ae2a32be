"""What a string may hold to be written or shown."""


def is_unicode(text: str) -> bool:
    r"""Whether a string can be written as UTF-8: JSON may hold half a character, a lone surrogate such as "\ud800"."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
