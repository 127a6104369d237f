"""The client of a server: blocking (``sparseagg.Client``) and for asyncio (``sparseagg.aio.Client``).

Every operation is written once, as a coroutine that waits through a transport: see ``transport``. From the top down:

    blocking_client  async_client      what people call; the blocking one runs the coroutines of the other
                     async_round       their rounds: round_calls and sealed_round have the rest of the class
    connection                         calls with retries, uploads and results that resume
    memory_connection                  the same calls, answered in this process by a server's rounds
    server_calls                       attempts at a call: to which server, when again, and with what error
    transport  channels  retry         how to wait, over which channel, and when to repeat
"""
