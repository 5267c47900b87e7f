"""The machine beneath: files, storage, progress, text made safe, processes that work together."""
