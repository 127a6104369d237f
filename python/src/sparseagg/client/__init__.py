"""The client of a server, blocking and asyncio."""
