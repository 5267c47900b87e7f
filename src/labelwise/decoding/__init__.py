"""Pictures decoded by processes of their own, which share memory and not Python's lock."""

from labelwise.decoding.processes import (
    DecodedChunk,
    DecodingProcesses,
    are_worth_it,
    borrowed_processes,
    items_ahead,
)
from labelwise.decoding.work import HEADER, NAME, SLOT_BYTES, Entry, Item, Kind, Work, reason_of

__all__ = [
    "HEADER",
    "NAME",
    "SLOT_BYTES",
    "DecodedChunk",
    "DecodingProcesses",
    "Entry",
    "Item",
    "Kind",
    "Work",
    "are_worth_it",
    "borrowed_processes",
    "items_ahead",
    "reason_of",
]
