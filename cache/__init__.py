"""Keys and values: the eviction rule, the slab, attention over it. Knows no request."""
