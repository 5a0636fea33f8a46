"""Model families: what differs between them, their weights, and where those come from."""
