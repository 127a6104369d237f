"""How operations of the client wait: blocking, without an event loop, and beside one."""

from __future__ import annotations

import asyncio

import grpc
import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.client.transport import AsyncioTransport, run


def test_run_of_an_operation_that_suspends_is_an_error():
    async def operation() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        run(operation())


def test_blocking_client_works_in_a_thread_with_an_event_loop(server):
    async def job() -> list[float]:
        with sa.Client(server.address) as client:
            rnd = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)]))
            rnd.submit("a", ([3], [1.5]))
            rnd.submit("b", {"v": (np.array([3]), np.array([2.0]))}, resumable=True)
            return rnd.finish()["v"].values.tolist()

    assert asyncio.run(job()) == [3.5]


def test_asyncio_call_that_the_server_ends_early_has_the_servers_status():
    # grpc.aio puts an INTERNAL of its own in the place of about half of these (grpc#36066).
    async def abort(requests: object, context: grpc.aio.ServicerContext) -> None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused", (("a", "b"),))

    async def messages():
        for _ in range(64):
            yield bytes(65536)

    async def job() -> list[tuple[object, ...]]:
        server = grpc.aio.server()
        handlers = {
            "Put": grpc.stream_unary_rpc_method_handler(abort),
            "Talk": grpc.stream_stream_rpc_method_handler(abort),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.S", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        transport = AsyncioTransport()
        ends = []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            put, talk = channel.stream_unary("/test.S/Put"), channel.stream_stream("/test.S/Talk")
            for _ in range(25):
                for is_put in (True, False):
                    try:
                        if is_put:
                            await transport.answer(put(messages()))
                        else:
                            await transport.read(talk(messages()), print)
                    except grpc.RpcError as error:
                        ends.append((error.code(), error.details(), tuple(error.trailing_metadata() or ())))
        await server.stop(None)
        return ends

    assert asyncio.run(job()) == [(grpc.StatusCode.INVALID_ARGUMENT, "refused", (("a", "b"),))] * 50
