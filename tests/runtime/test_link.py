"""Control messages: whole, in order, and the end of either side is seen."""

from __future__ import annotations

import asyncio
import socket
import threading

from has.runtime.link import GatewayLink, WorkerLink


def pair() -> tuple[GatewayLink, socket.socket]:
    ours, theirs = socket.socketpair()
    return GatewayLink(ours), theirs


def test_messages_larger_than_the_socket_buffer_arrive_whole_and_in_order() -> None:
    sent = [{"n": i, "ids": list(range(i * 4000))} for i in range(12)]

    async def talk() -> list:
        gateway, theirs = pair()
        worker = WorkerLink(theirs)
        echoed: list = []
        done = asyncio.Event()

        def echo() -> None:
            for message in worker.messages():
                worker.send(message)

        def take(message) -> None:
            echoed.append(message)
            if len(echoed) == len(sent):
                done.set()

        thread = threading.Thread(target=echo)
        thread.start()
        gateway.attach(asyncio.get_running_loop(), take, lambda: None)
        for message in sent:
            gateway.send(message)
        await asyncio.wait_for(done.wait(), 20)
        gateway.close()
        await asyncio.to_thread(thread.join)
        return echoed

    assert asyncio.run(talk()) == sent


def test_the_end_of_a_worker_is_told_once() -> None:
    async def end() -> int:
        gateway, theirs = pair()
        ended: list[int] = []
        gone = asyncio.Event()
        gateway.attach(asyncio.get_running_loop(), lambda _: None, lambda: (ended.append(1), gone.set()))
        theirs.close()
        await asyncio.wait_for(gone.wait(), 20)
        gateway.send({"to": "nobody"})
        gateway.close()
        return len(ended)

    assert asyncio.run(end()) == 1


def test_a_link_survives_a_change_of_event_loop() -> None:
    gateway, theirs = pair()
    worker = WorkerLink(theirs)

    async def hear() -> dict:
        heard = asyncio.get_running_loop().create_future()
        gateway.attach(asyncio.get_running_loop(), heard.set_result, lambda: None)
        worker.send({"loop": 1})
        message = await asyncio.wait_for(heard, 20)
        gateway.detach()
        return message

    assert asyncio.run(hear()) == {"loop": 1}
    assert asyncio.run(hear()) == {"loop": 1}
    gateway.close()
    theirs.close()
