"""The names of the notes that a gateway keeps of the request behind a turn (`Turn.notes`)."""

API, CLIENT, STREAMED = "API", "client", "streamed"
CAUSE, PLACE, BEFORE, NOW = "new context", "history differs at", "history before", "history now"
BODY, SHARES = "request body", "request body shares"
