"""Where clients connect: web page, WebSocket, health."""
