"""The official Python client judges a running lukv serve of the embedded model.

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=… python check.py [PID]

With the server's process id, its end is a part of the check. scripts/clients runs this.
"""

import json
import os
import signal
import sys
import typing
import unittest
import urllib.request

import openai
import pydantic

client = openai.OpenAI(timeout=120)  # address and key come from the environment
base = str(client.base_url).removesuffix("/").removesuffix("/v1")
model = client.models.list().data[0].id
pid = int(sys.argv.pop()) if len(sys.argv) > 1 else 0


def strict(answer):
    """Requires that an answer is what the client declares: by itself it takes anything."""
    type(answer).model_validate(answer.model_dump(), strict=True)
    return answer


def ask(text, **more):
    message = {"role": "user", "content": text}
    return dict({"model": model, "messages": [message], "max_completion_tokens": 24, "seed": 1}, **more)


def fetch(path, body=None):
    """A request by other means than the client, as evaluation tools make them."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + client.api_key}
    data = None if body is None else json.dumps(body).encode()  # without data it is a GET
    request = urllib.request.Request(base + path, data, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


class Client(unittest.TestCase):
    def agree(self, **params):
        """Asks for the whole answer and for a stream, which must say the same."""
        whole = strict(client.chat.completions.create(**params))
        texts, ends, probs = {}, {}, {}
        for chunk in client.chat.completions.create(**params, stream=True, stream_options={"include_usage": True}):
            strict(chunk)
            for c in chunk.choices:
                self.assertNotIn(c.index, ends, "nothing comes after the end")
                texts[c.index] = texts.get(c.index, "") + (c.delta.content or "")
                if c.logprobs:
                    probs.setdefault(c.index, []).extend(c.logprobs.content)
                if c.finish_reason:
                    ends[c.index] = c.finish_reason
        self.assertEqual(chunk.choices, [])
        self.assertEqual(chunk.usage.total_tokens, whole.usage.total_tokens)
        for c in whole.choices:
            self.assertEqual(texts[c.index], c.message.content)
            self.assertEqual(ends[c.index], c.finish_reason)
            if c.logprobs:
                self.assertEqual(probs[c.index], c.logprobs.content)
        return whole

    def test_models(self):
        self.assertIn("/", model)
        self.assertEqual(strict(client.models.retrieve(model)).id, model)

    def test_chat(self):
        self.agree(**ask("Hello"))
        self.agree(**ask("Hello", n=3, temperature=1.5, user="somebody"))
        answer = self.agree(**ask("Hello", logprobs=True, top_logprobs=2))
        text = b"".join(bytes(t.bytes) for t in answer.choices[0].logprobs.content)
        self.assertEqual(text.decode(errors="replace"), answer.choices[0].message.content)
        self.agree(**ask("Hello", logprobs=True))
        with client.chat.completions.stream(**ask("Hello")) as events:  # the client's own reading
            for _ in events:
                pass
            final = events.current_completion_snapshot
        self.assertEqual(final.choices[0].message.content, self.agree(**ask("Hello")).choices[0].message.content)

    def test_stop(self):
        text = self.agree(**ask("Hello")).choices[0].message.content
        self.assertGreater(len(text), 8)
        cut = self.agree(**ask("Hello", stop=[text[3:7]])).choices[0]
        self.assertEqual(cut.message.content, text[: text.index(text[3:7])])
        self.assertEqual(cut.finish_reason, "stop")

    def test_compression(self):
        context = " ".join(f"The magic number of house {i} is {i * 7919 % 1000}." for i in range(40))
        body = {"context": context, "kv_compression": {"ratio": 0.5, "metric": "keydiff"}}
        answer = self.agree(**ask("What is the magic number of house 7?"), extra_body=body)
        self.assertAlmostEqual(answer.kv_cache["ratio"], 0.5, delta=0.1)

    def test_tools(self):
        parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"], "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
        for choice, end in [("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop")]:
            params = ask("Hello", tools=tools, tool_choice=choice, n=2, temperature=1, max_completion_tokens=200)
            whole = strict(client.chat.completions.create(**params))
            with client.chat.completions.stream(**params) as events:
                for _ in events:
                    pass
                final = events.current_completion_snapshot
            for c, d in zip(whole.choices, final.choices, strict=True):
                self.assertEqual((c.finish_reason, d.finish_reason), (end, end))
                self.assertEqual(len(c.message.tool_calls), 1)
                call, again = c.message.tool_calls[0], d.message.tool_calls[0]
                self.assertEqual((call.type, call.function.name), ("function", "weather"))
                self.assertEqual(list(json.loads(call.function.arguments)), ["city"])
                self.assertEqual(again.function.arguments, call.function.arguments)

    def test_structured_output(self):
        class Label(pydantic.BaseModel):
            price: float = pydantic.Field(ge=0, lt=100)

        class Shirt(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=12)
            size: typing.Literal["S", "M", "L"]
            count: typing.Annotated[int, pydantic.Field(ge=1, le=9)] | None
            labels: list[Label] = pydantic.Field(max_length=2)

        params = ask("Hello", response_format=Shirt, max_completion_tokens=400, temperature=1)
        whole = client.chat.completions.parse(**params)
        self.assertIsInstance(whole.choices[0].message.parsed, Shirt)
        with client.chat.completions.stream(**params) as events:
            final = events.get_final_completion()
        self.assertEqual(final.choices[0].message.parsed, whole.choices[0].message.parsed)
        response = client.responses.parse(model=model, input="Hello", text_format=Shirt, max_output_tokens=400, extra_body={"seed": 1})
        self.assertIsInstance(response.output_parsed, Shirt)

    def test_responses(self):
        params = {"model": model, "input": "Hello", "max_output_tokens": 16, "extra_body": {"seed": 1}}
        whole = strict(client.responses.create(**params))
        text = ""
        for event in client.responses.create(**params, stream=True):
            strict(event)
            if event.type == "response.output_text.delta":
                text += event.delta
        self.assertEqual(text, whole.output_text)
        self.assertEqual(event.response.output_text, text)
        self.assertEqual(event.type, "response." + whole.status)
        scored = strict(client.responses.create(**params, include=["message.output_text.logprobs"], top_logprobs=2))
        tokens = scored.output[0].content[0].logprobs
        self.assertEqual(b"".join(bytes(t.bytes) for t in tokens).decode(errors="replace"), text)
        self.assertEqual({len(t.top_logprobs) for t in tokens}, {2})
        with self.assertRaises(openai.BadRequestError):
            client.responses.create(model=model, input="Hello", previous_response_id="resp_1")

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            client.chat.completions.create(**ask("Hello", temperature=3))
        e = caught.exception
        self.assertEqual((e.type, e.param, e.code), ("invalid_request_error", "temperature", None))
        self.assertTrue(e.request_id)
        with self.assertRaises(openai.NotFoundError) as caught:
            client.chat.completions.create(**ask("Hello", stream=True) | {"model": "another"})
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()

    def test_evaluation(self):
        """Requests of lm-eval's local-completions: a batch of token lists, scored. It
        sums the values of the continuation and takes it for greedy if each is the
        largest of its alternatives."""

        def tokenize(text):
            return fetch("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

        self.assertTrue(fetch("/tokenizer_info")["eos_token"])
        head = tokenize("One of the special magic")
        for end in [" numbers", " barn", "<|end|>"]:
            rest = tokenize(end)
            prompts = [head + rest, head[:2] + rest]
            body = {"model": model, "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True, "seed": 1234}
            strict(client.completions.create(**body | {"echo": False}))
            answer = fetch("/v1/completions", body)
            self.assertEqual(answer, fetch("/v1/completions", body) | {k: answer[k] for k in ("id", "created", "usage", "timings")})
            for choice, prompt in zip(sorted(answer["choices"], key=lambda c: c["index"]), prompts, strict=True):
                scores = choice["logprobs"]
                values, top = scores["token_logprobs"], scores["top_logprobs"]
                self.assertEqual(len(values), len(prompt) + 1, "the new token has a value, also at the end of the text")
                self.assertEqual((values[0], top[0]), (None, None))
                begin = len(prompt) - len(rest)
                self.assertLess(sum(values[begin:-1]), 0)
                self.assertEqual(values[-1], max(top[-1].values()), "the new token is greedy")
                # One token after another gives what scoring them together does.
                for i in range(begin, len(prompt)):
                    one = fetch("/v1/completions", body | {"prompt": prompt[:i]})["choices"][0]["logprobs"]
                    greedy = values[i] == max(top[i].values())
                    self.assertEqual(greedy, one["token_logprobs"][-1] == values[i])
                    self.assertEqual(max(one["top_logprobs"][-1].values()), max(top[i].values()))

    def test_zz_end_of_the_server(self):
        if not pid:
            self.skipTest("no process id of the server is given")
        body = {"ignore_eos": True}
        chunks = client.chat.completions.create(
            **ask("Hello", max_completion_tokens=1900, logprobs=True, top_logprobs=20, stream=True), extra_body=body)
        next(chunks)
        os.kill(pid, signal.SIGTERM)
        with self.assertRaises(openai.APIError) as caught:
            for _ in chunks:
                pass
        self.assertEqual(caught.exception.code, "shutting_down")


unittest.main(verbosity=2)
