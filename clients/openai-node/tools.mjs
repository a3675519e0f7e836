// The official Node clients of OpenAI and Anthropic judge what a running lukv serve of
// the embedded model does with tools, formats, responses and messages.
//
//   OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=… node tools.mjs
//
// The model knows nothing of calls: they are made because the server enforces them.
// scripts/clients runs this.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const client = new OpenAI(); // address and key come from the environment
const model = (await client.models.list()).data[0].id;
const options = { timeout: 120_000 };

const parameters = {
  type: 'object',
  properties: { city: { type: 'string', maxLength: 12 }, days: { type: 'integer', minimum: 1, maximum: 7 } },
  required: ['city', 'days'],
  additionalProperties: false,
};
const schema = {
  type: 'object',
  properties: { name: { type: 'string', maxLength: 12 }, sizes: { type: 'array', items: { enum: ['S', 'M', 'L'] }, minItems: 1, maxItems: 3 } },
  required: ['name', 'sizes'],
  additionalProperties: false,
};

const ask = (more) => ({ model, messages: [{ role: 'user', content: 'Hello' }], max_completion_tokens: 200, seed: 1, ...more });

function checkArguments(text) {
  const { city, days, ...rest } = typeof text === 'string' ? JSON.parse(text) : text;
  assert.equal(typeof city, 'string');
  assert.ok(Number.isInteger(days) && days >= 1 && days <= 7);
  assert.deepEqual(rest, {});
}

function checkObject({ name, sizes, ...rest }) {
  assert.ok([...name].length <= 12);
  assert.ok(sizes.length >= 1 && sizes.every((s) => ['S', 'M', 'L'].includes(s)));
  assert.deepEqual(rest, {});
}

test('tool calls', options, async () => {
  const tools = [{ type: 'function', function: { name: 'weather', description: 'tells the weather', parameters } }];
  for (const tool_choice of ['required', { type: 'function', function: { name: 'weather' } }]) {
    const params = ask({ tools, tool_choice, n: 2, temperature: 1 });
    const whole = await client.chat.completions.create(params);
    const streamed = await client.chat.completions.stream(params).finalChatCompletion();
    whole.choices.forEach(({ message, finish_reason }, i) => {
      const other = streamed.choices[i];
      assert.equal(message.content, null);
      assert.equal(message.tool_calls.length, 1);
      assert.equal(finish_reason, tool_choice === 'required' ? 'tool_calls' : 'stop');
      assert.equal(other.finish_reason, finish_reason);
      assert.equal(other.message.content ?? null, null);
      const [call, again] = [message.tool_calls[0], other.message.tool_calls[0]];
      assert.equal(call.type, 'function');
      assert.ok(call.id && again.id);
      assert.equal(call.function.name, 'weather');
      checkArguments(call.function.arguments);
      assert.deepEqual(again.function.arguments, call.function.arguments);
    });
  }
  const free = await client.chat.completions.create(ask({ tools, max_completion_tokens: 10 }));
  assert.equal(free.choices[0].message.tool_calls, undefined);
  assert.ok(free.choices[0].message.content);
});

test('the runner of tools', options, async () => {
  let calls = 0;
  const runner = client.chat.completions.runTools({
    ...ask({}),
    tools: [{ type: 'function', function: { name: 'weather', parameters, parse: JSON.parse, function: (args) => (calls++, checkArguments(args), 'rain') } }],
    tool_choice: { type: 'function', function: { name: 'weather' } },
  });
  assert.equal(await runner.finalFunctionToolCallResult(), 'rain');
  assert.equal(calls, 1);
});

test('structured output', options, async () => {
  const response_format = { type: 'json_schema', json_schema: { name: 'shirt', strict: true, schema } };
  const parsed = await client.chat.completions.parse(ask({ response_format }));
  checkObject(parsed.choices[0].message.parsed);
  const streamed = await client.chat.completions.stream(ask({ response_format })).finalChatCompletion();
  assert.equal(streamed.choices[0].message.content, parsed.choices[0].message.content);
  const any = await client.chat.completions.create(ask({ response_format: { type: 'json_object' }, max_completion_tokens: 20 }));
  assert.equal(any.choices[0].message.content[0], '{');
  const text = more => ({ type: 'json_schema', json_schema: { name: 'x', schema: { type: 'string', ...more } } });
  for (const [more, like] of [[{ pattern: '^[A-Z]{2}-\\d{4}$' }, /^"[A-Z]{2}-\d{4}"$/], [{ format: 'date' }, /^"\d{4}-\d\d-\d\d"$/]]) {
    assert.match((await client.chat.completions.create(ask({ response_format: text(more) }))).choices[0].message.content, like);
  }
  const refused = { type: 'json_schema', json_schema: { name: 'x', strict: true, schema: { type: 'array', items: { type: 'string' }, uniqueItems: true } } };
  await assert.rejects(client.chat.completions.create(ask({ response_format: refused })), { status: 400, param: 'response_format', message: /uniqueItems/ });
});

test('responses', options, async () => {
  const params = { model, input: 'Hello', seed: 1, max_output_tokens: 200, store: false };
  const tools = [{ type: 'function', name: 'weather', description: 'tells the weather', parameters, strict: true }];
  for (const more of [{ max_output_tokens: 16 }, { text: { format: { type: 'json_schema', name: 'shirt', strict: true, schema } } }, { tools, tool_choice: 'required' }]) {
    const whole = await client.responses.create({ ...params, ...more });
    const seen = {};
    const stream = client.responses.stream({ ...params, ...more });
    let text = '';
    stream.on('response.output_text.delta', (e) => (text += e.delta));
    stream.on('event', (e) => (seen[e.type] = (seen[e.type] ?? 0) + 1));
    const final = await stream.finalResponse();
    assert.equal(final.status, whole.status);
    assert.equal(final.output_text, whole.output_text);
    assert.equal(text, whole.output_text);
    assert.equal(final.usage.total_tokens, whole.usage.total_tokens);
    assert.equal(seen['response.created'], 1);
    assert.equal(seen[`response.${whole.status}`], 1);
    if (more.tools) {
      checkArguments(whole.output[0].arguments);
      assert.deepEqual(final.output[0].arguments, whole.output[0].arguments);
      assert.equal(final.output[0].call_id.length, whole.output[0].call_id.length);
      const again = [{ role: 'user', content: 'Hello' }, whole.output[0], { type: 'function_call_output', call_id: whole.output[0].call_id, output: 'rain' }, { role: 'user', content: 'So?' }];
      assert.ok((await client.responses.create({ ...params, input: again, max_output_tokens: 5 })).output_text);
    } else if (more.text) {
      checkObject(JSON.parse(whole.output_text));
      checkObject((await client.responses.parse({ ...params, ...more })).output_parsed);
    }
  }
  await assert.rejects(client.responses.create({ ...params, previous_response_id: 'resp_1' }), { status: 400, param: 'previous_response_id' });
});

test('messages', options, async () => {
  const anthropic = new Anthropic({ baseURL: new URL(client.baseURL).origin, apiKey: client.apiKey });
  const params = { model, max_tokens: 200, seed: 1, system: 'Answer.', messages: [{ role: 'user', content: 'Hello' }] };
  const tools = [{ name: 'weather', description: 'tells the weather', input_schema: parameters }];
  const cases = [
    [{ max_tokens: 12 }, 'max_tokens'],
    [{ stop_sequences: ['e'] }, 'stop_sequence'],
    [{ tools, tool_choice: { type: 'any' } }, 'tool_use'],
    [{ tools, tool_choice: { type: 'tool', name: 'weather' } }, 'tool_use'],
  ];
  for (const [more, reason] of cases) {
    const whole = await anthropic.messages.create({ ...params, ...more });
    const final = await anthropic.messages.stream({ ...params, ...more }).finalMessage();
    assert.equal(whole.stop_reason, reason);
    assert.equal(final.stop_reason, reason);
    assert.equal(final.stop_sequence, whole.stop_sequence);
    assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
    assert.equal(final.content.length, whole.content.length);
    whole.content.forEach((block, i) => {
      assert.equal(final.content[i].type, block.type);
      assert.equal(final.content[i].text, block.text);
      assert.deepEqual(final.content[i].input, block.input);
    });
    if (reason !== 'tool_use') continue;
    const [call] = whole.content;
    checkArguments(call.input);
    const result = { type: 'tool_result', tool_use_id: call.id, content: 'rain' };
    const messages = [...params.messages, { role: 'assistant', content: whole.content }, { role: 'user', content: [result, { type: 'text', text: 'So?' }] }];
    assert.equal((await anthropic.messages.create({ ...params, tools, messages, max_tokens: 5 })).role, 'assistant');
  }
  assert.ok((await anthropic.messages.countTokens({ model, messages: params.messages })).input_tokens > 0);
  await assert.rejects(anthropic.messages.create({ ...params, model: 'another' }), Anthropic.NotFoundError);
  await assert.rejects(anthropic.messages.create({ ...params, temperature: 5 }), Anthropic.BadRequestError);
  await assert.rejects(new Anthropic({ baseURL: new URL(client.baseURL).origin, apiKey: 'wrong' }).messages.create(params), Anthropic.AuthenticationError);
});
