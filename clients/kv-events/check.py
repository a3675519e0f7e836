"""ZeroMQ's own library and MessagePack's judge the KV events of a running lukv serve of
the embedded model, as a router would hear them.

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=… python check.py EVENTS REPLAY [PID]

EVENTS and REPLAY are addresses such as tcp://127.0.0.1:5557. scripts/clients runs this.
"""

import json
import os
import sys
import unittest
import urllib.request

import msgpack
import zmq

base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
events_at, replay_at = sys.argv[1:3]
del sys.argv[1:]
context = zmq.Context()


def post(path, body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
    request = urllib.request.Request(base + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


class Router:
    """What a router knows: which block, of which tokens behind which block, is there."""

    def __init__(self):
        self.next, self.blocks = None, {}
        self.whole = True  # heard from the first batch on

    def hear(self, seq, payload):
        if self.next is None:
            self.whole = seq == 0
        else:
            assert seq == self.next, f"batch {seq} comes behind {self.next - 1}"
        self.next = seq + 1
        time, events, rank = msgpack.unpackb(payload)
        assert time > 1e9 and rank is None
        for event in events:
            match event:
                case ["BlockStored", hashes, parent, tokens, 16, None, "GPU", None]:
                    assert parent is None or parent in self.blocks
                    assert len(tokens) == 16 * len(hashes)
                    for i, name in enumerate(hashes):
                        assert name not in self.blocks
                        self.blocks[name] = (parent, tokens[16 * i : 16 * i + 16])
                        parent = name
                case ["BlockRemoved", hashes, "GPU"]:
                    for name in hashes:
                        assert name in self.blocks or not self.whole
                        self.blocks.pop(name, None)
                case ["AllBlocksCleared"]:
                    self.blocks.clear()
                case _:
                    raise AssertionError(event)
        return [e[0] for e in events]

    def longest(self, tokens):
        """How many tokens of a prompt are there, block by block."""
        parent, n = None, 0
        while n < len(tokens):
            found = [name for name, block in self.blocks.items() if block == (parent, tokens[n : n + 16])]
            if not found:
                break
            (parent,), n = found, n + 16
        return n


class Events(unittest.TestCase):
    def socket(self, kind):
        s = context.socket(kind)
        s.setsockopt(zmq.RCVTIMEO, 60000)
        self.addCleanup(s.close, 0)
        return s

    def test_events(self):
        sub = self.socket(zmq.SUB)
        sub.connect(events_at)
        sub.subscribe(b"kv@")
        router = Router()
        model = "needle/llama"
        words = " ".join(f"The magic number of house {i} is {i * 7919 % 1000}." for i in range(40))

        def ask(text):
            usage = post("/completions", {"model": model, "prompt": text, "max_tokens": 1})["usage"]
            rendered = post("/completions/render", {"model": model, "prompt": text})
            return usage["prompt_tokens_details"]["cached_tokens"], rendered[0]["token_ids"]

        def hear(until):
            heard = []
            while not until():
                topic, seq, payload = sub.recv_multipart()
                self.assertEqual(topic.decode(), "kv@10.0.0.1:8000@" + model)
                heard += router.hear(int.from_bytes(seq, "big"), payload)
            return heard

        # Nobody knows when a subscription has arrived: prompts are asked until one is heard.
        for i in range(600):
            ask(f"Number {i}: " + words[:200])
            if sub.poll(100):
                break
        cached, tokens = ask(words)
        self.assertLess(cached, len(tokens) - 16)
        hear(lambda: router.longest(tokens) == len(tokens) // 16 * 16)
        # Again: it is there, as was said, and nothing is new.
        before = dict(router.blocks)
        cached, tokens = ask(words)
        self.assertGreaterEqual(cached + 1, router.longest(tokens))
        self.assertFalse(sub.poll(200))
        self.assertEqual(router.blocks, before)
        # What is compressed serves nobody who asks for its tokens alone.
        compression = {"context": words, "kv_compression": {"ratio": 0.5, "metric": "keydiff"}}
        message = {"role": "user", "content": "What is the magic number of house 7?"}
        post("/chat/completions", {"model": model, "messages": [message], "max_tokens": 1} | compression)
        while sub.poll(200):  # it may take the place of others
            topic, seq, payload = sub.recv_multipart()
            self.assertEqual(router.hear(int.from_bytes(seq, "big"), payload), ["BlockRemoved"])
        # Others take its place in the cache. What the router knows is what is cached.
        for i in range(200):
            ask(f"{i} others. " + words)
            if sub.poll(1000):
                heard = hear(lambda: not sub.poll(0))
                if "BlockRemoved" in heard and router.longest(tokens) == 0:
                    break
        self.assertEqual(router.longest(tokens), 0)
        self.assertLess(ask(words)[0], 16)

        # Somebody who comes late hears the same.
        hear(lambda: router.longest(tokens) > 0)
        replay = self.socket(zmq.DEALER)
        replay.connect(replay_at)
        replay.send_multipart([b"", (0).to_bytes(8, "big")])
        late = Router()
        while True:
            empty, seq, payload = replay.recv_multipart()
            self.assertEqual(empty, b"")
            if int.from_bytes(seq, "big", signed=True) == -1:
                self.assertEqual(payload, b"")
                break
            late.hear(int.from_bytes(seq, "big"), payload)
        while late.next > router.next:
            topic, seq, payload = sub.recv_multipart()
            router.hear(int.from_bytes(seq, "big"), payload)
        self.assertEqual(set(late.blocks), set(router.blocks))


unittest.main(argv=sys.argv[:1], verbosity=2)
