"""Readers of fields and tools, and adapters for other libraries."""
