"""What is wrong with a record that pydantic refuses, as part of a sentence."""

from pydantic import ValidationError


def first_fault(error: ValidationError) -> str:
    """Return what is wrong first, where it stands, and what stands there.

    >>> from pydantic import TypeAdapter
    >>> try:
    ...     TypeAdapter(dict[str, int]).validate_python({"rows": "many"})
    ... except ValidationError as error:
    ...     print(first_fault(error))
    'rows': input should be a valid integer, unable to parse string as an integer, got 'many'
    """
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    reason = first["msg"].removeprefix("Value error, ")
    if not where:
        return reason
    if first["type"] == "missing":
        return f"{where!r} is missing"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown entry {where!r}"
    return f"{where!r}: {reason[0].lower()}{reason[1:]}, got {first['input']!r:.60}"
