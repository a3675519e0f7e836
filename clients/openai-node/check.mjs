// The official Node client judges a running lukv serve of the embedded model.
//
//   OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=… node check.mjs [PID]
//
// With the server's process id, its end is a part of the check. scripts/clients runs
// this.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';

const client = new OpenAI(); // address and key come from the environment
const origin = new URL(client.baseURL).origin;
const model = (await client.models.list()).data[0].id;
const options = { timeout: 120_000 };

const ask = (text, more) => ({
  model,
  messages: [{ role: 'user', content: text }],
  max_completion_tokens: 24,
  seed: 1,
  ...more,
});

// streamed puts the chunks of a chat together, and checks what clients rely on.
async function streamed(params) {
  const out = { choices: [], usage: null, cache: undefined };
  let id;
  const chunks = await client.chat.completions.create({ ...params, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of chunks) {
    assert.equal(chunk.object, 'chat.completion.chunk');
    assert.equal(chunk.id, (id ??= chunk.id));
    assert.equal(out.usage, null, 'nothing comes after the usage');
    out.usage = chunk.usage ?? null;
    out.cache = chunk.kv_cache;
    for (const { index, delta, finish_reason, logprobs } of chunk.choices) {
      const first = !out.choices[index];
      const choice = (out.choices[index] ??= { text: '', finish: null, logprobs: [] });
      assert.equal(delta.role, first ? 'assistant' : undefined, 'the role comes once, first');
      assert.equal(choice.finish, null, 'nothing comes after the end');
      choice.text += delta.content ?? '';
      choice.finish = finish_reason;
      choice.logprobs.push(...(logprobs?.content ?? []));
    }
  }
  assert.ok(out.usage, 'the usage comes last');
  return out;
}

// agree asks for the whole answer, for a stream, and for the client's own reading of a
// stream, which must all say the same, and returns the answer.
async function agree(params) {
  const whole = await client.chat.completions.create(params);
  const { usage } = whole;
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
  const pieces = await streamed(params);
  assert.equal(pieces.usage.completion_tokens, usage.completion_tokens);
  assert.deepEqual(pieces.cache, whole.kv_cache);
  const helper = await client.chat.completions.stream(params).finalChatCompletion();
  assert.equal(whole.choices.length, params.n ?? 1);
  whole.choices.forEach((choice, i) => {
    assert.equal(choice.index, i);
    assert.equal(choice.message.role, 'assistant');
    assert.equal(choice.message.refusal, null);
    assert.equal(pieces.choices[i].text, choice.message.content);
    assert.equal(helper.choices[i].message.content ?? '', choice.message.content);
    assert.equal(pieces.choices[i].finish, choice.finish_reason);
    assert.equal(helper.choices[i].finish_reason, choice.finish_reason);
    assert.deepEqual(pieces.choices[i].logprobs, choice.logprobs?.content ?? []);
  });
  return whole;
}

test('models', options, async () => {
  assert.match(model, /\//, 'an id with a slash is a part of this check');
  const entry = await client.models.retrieve(model);
  assert.equal(entry.id, model);
  assert.equal(entry.object, 'model');
  assert.ok(entry.max_model_len > 0);
});

test('chat', options, async () => {
  await agree(ask('Hello'));
  await agree(ask('Hello', { n: 3, temperature: 1.5, presence_penalty: 0.5, user: 'somebody', store: false }));
  const answer = await agree(ask('Hello', { logprobs: true, top_logprobs: 2 }));
  for (const token of answer.choices[0].logprobs.content) {
    assert.ok(token.logprob <= 0);
    assert.equal(token.top_logprobs.length, 2);
  }
  const again = await client.chat.completions.create(ask('Hello', { logprobs: true, top_logprobs: 2 }));
  assert.deepEqual(again.choices, answer.choices, 'the seed decides');
  await agree({
    model, seed: 1, max_tokens: 5,
    messages: [
      { role: 'developer', content: 'Answer.' },
      { role: 'user', content: [{ type: 'text', text: 'What ' }, { type: 'text', text: 'now?' }] },
      { role: 'assistant', content: 'Nothing.' },
      { role: 'user', content: 'And now?' },
    ],
  });
});

test('characters of several tokens', options, async () => {
  const sign = '🙂é';
  const { tokens } = await client.post(`${origin}/tokenize`, { body: { prompt: sign, add_special_tokens: false } });
  assert.ok(tokens.length > [...sign].length, 'characters are several tokens');
  const logit_bias = Object.fromEntries(tokens.map((id) => [id, 100]));
  let found = '';
  for (let seed = 0; seed < 6; seed++) {
    const answer = await agree(ask('Hello', { temperature: 2, seed, logit_bias, logprobs: true, max_completion_tokens: 40 }));
    const { message, logprobs } = answer.choices[0];
    assert.equal(Buffer.from(logprobs.content.flatMap((t) => t.bytes)).toString(), message.content, 'the bytes are the text');
    found += message.content;
  }
  assert.match(found, /[🙂é]/u, 'whole characters are among the answers');
});

test('stop', options, async () => {
  const text = (await client.chat.completions.create(ask('Hello'))).choices[0].message.content;
  assert.ok(text.length > 8, `an answer to cut: ${text}`);
  for (let from = 1; from + 4 <= text.length; from += 3) {
    const stop = text.slice(from, from + 4);
    const { message, finish_reason } = (await agree(ask('Hello', { stop: ['never said', stop] }))).choices[0];
    assert.equal(message.content, text.slice(0, text.indexOf(stop)));
    assert.equal(finish_reason, 'stop');
  }
});

test('completions', options, async () => {
  const textOf = async (params) => {
    const whole = await client.completions.create(params);
    const pieces = whole.choices.map(() => ({ text: '', tokens: [], values: [] }));
    let usage;
    for await (const chunk of await client.completions.create({ ...params, stream: true, stream_options: { include_usage: true } })) {
      assert.equal(chunk.object, 'text_completion');
      usage = chunk.usage;
      for (const { index, text, logprobs, finish_reason } of chunk.choices) {
        assert.ok(!pieces[index].finish, 'nothing comes after the end');
        pieces[index].text += text;
        pieces[index].finish = finish_reason;
        pieces[index].tokens.push(...(logprobs?.tokens ?? []));
        pieces[index].values.push(...(logprobs?.token_logprobs ?? []));
      }
    }
    assert.equal(usage.total_tokens, whole.usage.total_tokens);
    whole.choices.forEach((choice, i) => {
      assert.equal(choice.index, i);
      assert.equal(pieces[i].text, choice.text);
      assert.equal(pieces[i].finish, choice.finish_reason);
      assert.deepEqual(pieces[i].tokens, choice.logprobs?.tokens ?? []);
      assert.deepEqual(pieces[i].values, choice.logprobs?.token_logprobs ?? []);
    });
    return whole.choices;
  };
  const prompt = 'The naïve café’s 🙂 guests';
  const [choice] = await textOf({ model, prompt, echo: true, logprobs: 1, max_tokens: 6, seed: 1 });
  assert.ok(choice.text.includes(prompt));
  const { tokens, token_logprobs, top_logprobs, text_offset } = choice.logprobs;
  for (const list of [token_logprobs, top_logprobs, text_offset]) {
    assert.equal(list.length, tokens.length);
  }
  assert.equal(token_logprobs[0], null);
  assert.equal(top_logprobs[0], null);
  const several = await textOf({ model, prompt: ['One', 'Two'], n: 2, max_tokens: 4, seed: 2 });
  assert.equal(several.length, 4);
  await textOf({ model, prompt: [[300, 301], [302]], max_tokens: 4, seed: 2 });
});

test('contexts and documents', options, async () => {
  const text = Array.from({ length: 40 }, (_, i) => `The magic number of house ${i} is ${(i * 7919) % 1000}.`).join(' ');
  const kv_compression = { ratio: 0.5, metric: 'keydiff' };
  const question = 'What is the magic number of house 7?';
  const about = await agree(ask(question, { context: text, kv_compression }));
  assert.ok(Math.abs(about.kv_cache.ratio - 0.5) < 0.1);
  const doc = await client.post('/documents', { body: { model, text, kv_compression } });
  const read = await agree(ask(question, { document: doc.id }));
  assert.equal(read.choices[0].message.content, about.choices[0].message.content);
  assert.equal(read.kv_cache.document, doc.id);
  assert.ok(read.usage.prompt_tokens_details.cached_tokens >= doc.tokens);
  assert.equal((await client.delete(`/documents/${doc.id}`)).deleted, true);
  await assert.rejects(client.chat.completions.create(ask(question, { document: doc.id })), { status: 404, code: 'document_not_found' });
});

test('errors before the first byte', options, async () => {
  const cases = [
    [{ temperature: 3 }, OpenAI.BadRequestError, { status: 400, type: 'invalid_request_error', param: 'temperature', code: null }],
    [{ messages: [] }, OpenAI.BadRequestError, { param: 'messages' }],
    [{ max_completion_tokens: 1e6 }, OpenAI.BadRequestError, { code: 'context_length_exceeded' }],
    [{ tools: [{ type: 'function', function: { name: 'f', parameters: { not: {} } } }], tool_choice: 'required' }, OpenAI.BadRequestError, { param: 'tools' }],
    [{ kv_compression: { ratio: 0.5 } }, OpenAI.BadRequestError, { param: 'kv_compression' }],
    [{ model: 'another' }, OpenAI.NotFoundError, { status: 404, code: 'model_not_found' }],
  ];
  for (const [more, kind, want] of cases) {
    for (const stream of [false, true]) {
      const e = await client.chat.completions.create(ask('Hello', { ...more, stream })).then(() => assert.fail('no error'), (e) => e);
      assert.ok(e instanceof kind, `${e}`);
      for (const [key, value] of Object.entries(want)) assert.equal(e[key], value, key);
      assert.ok(e.requestID);
      assert.ok(e.message.length > 10);
    }
  }
  await assert.rejects(new OpenAI({ apiKey: 'wrong' }).models.list(), OpenAI.AuthenticationError);
  await assert.rejects(client.models.retrieve('no/such'), OpenAI.NotFoundError);
  let tries = 0;
  const counting = new OpenAI({ fetch: (...args) => (tries++, fetch(...args)) });
  await assert.rejects(counting.embeddings.create({ model, input: 'x' }), { status: 501 });
  assert.equal(tries, 1, 'what would fail again is asked once');
});

test('leaving', options, async () => {
  const chunks = await client.chat.completions.create(ask('Hello', { max_completion_tokens: 1900, ignore_eos: true, stream: true }));
  for await (const chunk of chunks) {
    assert.ok(chunk.choices.length);
    break;
  }
  await agree(ask('Hello'));
});

const pid = Number(process.argv[2]);
test('errors after the first byte', { ...options, skip: pid ? false : 'no process id of the server is given' }, async () => {
  const long = ask('Hello', { max_completion_tokens: 1900, ignore_eos: true, logprobs: true, top_logprobs: 20, stream: true });
  const chunks = await client.chat.completions.create(long);
  let count = 0;
  const reading = async () => {
    for await (const _ of chunks) {
      if (count++ === 0) process.kill(pid, 'SIGTERM');
    }
  };
  const e = await reading().then(() => assert.fail('the stream ended as if the answer were complete'), (e) => e);
  assert.ok(count > 0);
  assert.ok(e instanceof OpenAI.APIError, `${e}`);
  assert.equal(e.code, 'shutting_down');
  assert.equal(e.type, 'server_error');
});
