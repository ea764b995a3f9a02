"""Trial records, the store, queries. Plain files; no torch."""
