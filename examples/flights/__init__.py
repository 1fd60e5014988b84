"""The flights example: 336,776 departures from New York in 2013, moved in bulk, with passengers told once."""
