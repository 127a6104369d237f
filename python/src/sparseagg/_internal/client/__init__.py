"""The client of a server: blocking (``sparseagg.Client``) and for asyncio (``sparseagg.aio.Client``).

Every operation is written once, as a coroutine that waits through a transport: see ``transport``. From the top down:

    blocking_client  async_client      what people call; the blocking one runs the coroutines of the other
    blocking_round   async_round       likewise
    blocking                           makes the methods of the former from those of the latter
    connection                         calls with retries, uploads and results that resume
    memory_connection                  the same calls, answered in this process by a server's rounds
    transport  channel_pool  retry     how to wait, over which channel, and when to repeat
"""
