"""The client of a server: blocking (``sparseagg.Client``) and for asyncio (``sparseagg.aio.Client``).

Every operation is written once, as a coroutine that waits through a transport: see ``transport``. From the top down:

    blocking_client  async_client      what people call; the blocking one runs the coroutines of the other
                     async_round       their rounds: round_calls has the rest of the class
    upload  result_reader              what callers have to messages, and pages to results
    connection                         calls with retries, uploads and results that resume
    memory_connection                  the same calls, answered in this process by a server's rounds
    transport  channels  retry         how to wait, over which channel, and when to repeat
"""
