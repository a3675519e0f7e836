"""Ollama's Python client judges a running lukv serve of the embedded model.

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=… python check.py

scripts/clients runs this.
"""

import json
import os
import sys
import unittest

import ollama

base = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
client = ollama.Client(host=base, headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}, timeout=120)
model = client.list().models[0].model
greedy = {"temperature": 0, "num_predict": 12, "repeat_penalty": 1.0, "num_ctx": 1024}


class Client(unittest.TestCase):
    def test_chat(self):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
        whole = client.chat(model, messages, options=greedy)
        self.assertTrue(whole.done)
        self.assertEqual(whole.done_reason, "length" if whole.eval_count == 12 else "stop")
        self.assertGreater(whole.prompt_eval_count, 4)
        self.assertGreater(whole.total_duration, whole.eval_duration)
        pieces = list(client.chat(model, messages, options=greedy, stream=True))
        self.assertEqual("".join(p.message.content for p in pieces), whole.message.content)
        self.assertEqual([p.done for p in pieces], [False] * (len(pieces) - 1) + [True])
        self.assertGreater(len(pieces), 2)
        self.assertEqual(pieces[-1].eval_count, whole.eval_count)

    def test_generate(self):
        whole = client.generate(model, "hello", options=greedy)
        chat = client.chat(model, [{"role": "user", "content": "hello"}], options=greedy)
        self.assertEqual(whole.response, chat.message.content)
        pieces = list(client.generate(model, "hello", options=greedy, stream=True))
        self.assertEqual("".join(p.response for p in pieces), whole.response)
        raw = client.generate(model, "hello", raw=True, options=greedy)
        self.assertEqual(raw.eval_count, 12)
        self.assertLess(raw.prompt_eval_count, whole.prompt_eval_count)
        self.assertEqual(client.generate(model, "").done_reason, "load")

    def test_formats(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"], "additionalProperties": False}
        options = dict(greedy, num_predict=60)
        answer = client.chat(model, [{"role": "user", "content": "a number"}], format=schema, options=options)
        self.assertIn(json.loads(answer.message.content)["n"], range(10))

    def test_tools(self):
        def weather(city: str) -> str:
            """The weather.

            Args:
              city: where
            """

        try:
            answer = client.chat(model, [{"role": "user", "content": "Weather in Rome?"}], tools=[weather], options=greedy)
        except ollama.ResponseError as e:  # the embedded model's template has no tools
            self.assertEqual(e.status_code, 400)
            self.assertIn("tools", e.error)
        else:
            self.assertTrue(answer.done)

    def test_stop_and_seed(self):
        options = {"seed": 7, "num_predict": 30, "temperature": 1.0}
        first = client.generate(model, "hello", options=options)
        self.assertEqual(first.response, client.generate(model, "hello", options=options).response)
        stop = first.response.split()[2]
        cut = client.generate(model, "hello", options=dict(options, stop=[stop]))
        self.assertNotIn(stop, cut.response)
        self.assertEqual(cut.done_reason, "stop")

    def test_models(self):
        self.assertEqual(client.ps().models[0].model, model)
        shown = client.show(model)
        self.assertIn("completion", shown.capabilities)
        self.assertEqual(shown.modelinfo[shown.modelinfo["general.architecture"] + ".context_length"], 2048)
        self.assertGreater(client.list().models[0].size, 1 << 20)
        self.assertEqual(client.chat(model + ":latest", [{"role": "user", "content": "x"}], options=greedy).model, model)

    def test_errors(self):
        for status, call in {
            404: lambda: client.chat("nowhere", [{"role": "user", "content": "x"}]),
            400: lambda: client.chat(model, [{"role": "user", "content": "x"}], options={"num_predict": 0}),
            501: lambda: client.embed(model, "x"),
        }.items():
            with self.assertRaises(ollama.ResponseError) as e:
                call()
            self.assertEqual(e.exception.status_code, status)
        with self.assertRaisesRegex(ollama.ResponseError, "options.temperature"):
            client.chat(model, [{"role": "user", "content": "x"}], options={"temperature": 7.0})
        with self.assertRaisesRegex(ollama.ResponseError, "images"):
            client.chat(model, [{"role": "user", "content": "x", "images": [b"x"]}])
        with self.assertRaisesRegex(ollama.ResponseError, "maximum context length"):
            client.generate(model, "word " * 5000)

    def test_litellm(self):
        try:
            os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
            import litellm
        except ImportError:
            self.skipTest("litellm is not installed")
        more = {"api_base": base, "api_key": os.environ["OPENAI_API_KEY"], "temperature": 0, "max_tokens": 12}
        ask = [{"role": "user", "content": "hello"}]
        whole = litellm.completion("ollama_chat/" + model, ask, **more)
        self.assertIn(whole.usage.completion_tokens, range(1, 13))
        text = "".join(c.choices[0].delta.content or "" for c in litellm.completion("ollama_chat/" + model, ask, stream=True, **more))
        self.assertEqual(text, whole.choices[0].message.content)


del sys.argv[1:]  # the server's process id

if __name__ == "__main__":
    sys.exit(not unittest.main(exit=False, verbosity=2).result.wasSuccessful())
