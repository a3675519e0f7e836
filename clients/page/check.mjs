// A browser judges the page of a running lukv serve of the embedded model.
//
//   OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=… node check.mjs CHROMIUM [FOLDER]
//
// Screenshots go into the folder, if it is given and there is one. scripts/clients runs
// this.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { chromium } from 'playwright-core';

const [executablePath, folder] = process.argv.slice(2);
const origin = new URL(process.env.OPENAI_BASE_URL).origin;
const key = process.env.OPENAI_API_KEY;
const samples = readFileSync(new URL('../../model/builtin/eval_samples.jsonl', import.meta.url), 'utf8').trim().split('\n').map(JSON.parse);
const sample = samples.find(s => s.task === 'niah_single_2' && s.length === 1024);

let browser, page;
const complaints = []; // of the page: errors, and what its policy refused

before(async () => {
  // Containers lack what the browser's own sandbox needs; it sees this server alone.
  browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
  page = await browser.newPage({ viewport: { width: 1280, height: 1000 }, colorScheme: 'light' });
  page.setDefaultTimeout(60_000);
  page.on('pageerror', e => complaints.push(e.message));
  page.on('console', m => m.type() === 'error' && complaints.push(m.text()));
  page.on('request', r => r.url().startsWith(origin) || r.url().startsWith('data:') || complaints.push('asked elsewhere: ' + r.url()));
});
after(() => browser?.close());

const shot = async name => folder && existsSync(folder) && page.screenshot({ path: join(folder, name + '.png'), fullPage: true });
const text = selector => page.locator(selector).innerText();
const answers = () => page.locator('.answer');
const idle = () => page.waitForFunction(() => document.querySelector('#stop').disabled && !document.querySelector('.busy'));

async function ask(question) {
  await page.fill('#question', question);
  await page.click('#send');
}

test('the key is asked for, and opens the page', async () => {
  await page.goto(origin + '/');
  await page.waitForSelector('#access[open]');
  assert.match(await text('#chat-error'), /API key/);
  complaints.length = 0; // the browser tells of every 401
  await page.fill('#key', key);
  await page.press('#key', 'Tab');
  await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
  assert.equal(await text('#chat-error'), '');
  assert.match(await text('#about'), /2,048 tokens/);
});

test('an answer is streamed', async () => {
  await ask('hello');
  await idle();
  assert.equal(await answers().count(), 1);
  assert.match(await answers().first().innerText(), /first token/);
  assert.match(await answers().first().innerText(), /of 2,048 positions/);
});

test('Stop ends an answer, here and on the server', async () => {
  await page.click('#clear');
  await page.route('**/v1/chat/completions', (route, request) => // an answer without an end
    route.continue({ postData: JSON.stringify({ ...request.postDataJSON(), ignore_eos: true, seed: 1 }) }));
  const place = await page.locator('#stop').boundingBox();
  // However fast the model and slow the browser: of this answer's 440 KB the page gets the
  // first half and then nothing until Stop, which is pressed from within the page.
  await page.evaluate(() => {
    const fetch = window.fetch;
    window.fetch = async (path, options) => {
      window.fetch = fetch;
      const answer = await fetch(path, options);
      const reader = answer.body.getReader();
      let left = 200_000;
      return new Response(new ReadableStream({
        start: out => options.signal.addEventListener('abort', () => out.error(options.signal.reason)),
        async pull(out) {
          const part = (await reader.read()).value.subarray(0, left);
          out.enqueue(part);
          left -= part.length;
          if (!left) await new Promise(() => {});
        },
      }), answer);
    };
    new MutationObserver((_, me) => {
      if ((document.querySelector('.answer .text')?.textContent.length ?? 0) < 4000) return;
      me.disconnect();
      document.querySelector('#stop').click();
    }).observe(document.querySelector('#log'), { childList: true, subtree: true });
  });
  await ask('hello');
  await idle();
  assert.deepEqual(await page.locator('#stop').boundingBox(), place, 'Stop stays under the pointer');
  assert.ok(await page.evaluate(() => {
    const log = document.querySelector('#log');
    return log.scrollHeight > log.clientHeight && log.scrollTop + log.clientHeight > log.scrollHeight - 2;
  }), 'a growing answer is followed');
  await page.unroute('**/v1/chat/completions');
  assert.match(await answers().first().innerText(), /stopped/);
  for (;;) {
    const metrics = await (await fetch(origin + '/metrics')).text();
    if (metrics.match(/vllm:num_requests_running\{[^}]*\} (\d+)/)[1] === '0') break;
  }
  await page.click('#clear');
  assert.equal(await answers().count(), 0);
});

test('a file dropped in is read and compressed', async () => {
  await page.selectOption('#metric', 'keydiff');
  await page.selectOption('#allocator', 'lukv');
  const data = await page.evaluateHandle(text => {
    const data = new DataTransfer();
    data.items.add(new File([text], 'walnut.txt', { type: 'text/plain' }));
    return data;
  }, sample.context);
  await page.dispatchEvent('#drop', 'dragover', { dataTransfer: data });
  await page.dispatchEvent('#drop', 'drop', { dataTransfer: data });
  await page.waitForSelector('#memory:not([hidden])');
  assert.equal(await text('#document-error'), '');
  assert.match(await text('#reading'), /^Read \d+,?\d* tokens/);
  const [full, held] = [await text('#full-bytes'), await text('#held-bytes')];
  assert.match(held, /^held: .*B \(\d+ %\)$/);
  const share = Number(held.match(/(\d+) %/)[1]);
  assert.ok(share >= 50 && share < 75, `held ${held}, full ${full}`); // whole pages are held
});

test('full and compressed answers stand side by side', async () => {
  await ask(sample.question);
  await idle();
  assert.equal(await text('#chat-error'), '');
  const boxes = await answers().allInnerTexts();
  assert.equal(boxes.length, 2);
  assert.match(boxes[0], /^50 % of the cache/);
  assert.match(boxes[1], /^Full cache/);
  assert.ok(boxes[1].includes(sample.answers[0]), boxes[1]);
  for (const box of boxes) assert.match(box, /prompt [\d,]+, [1-9][\d,]* of it cached/);
});

test('the live view shows what each head kept', async () => {
  const cells = page.locator('#heat td button');
  await page.waitForFunction(() => document.querySelector('#text mark'));
  const labels = await cells.evaluateAll(all => all.map(b => b.getAttribute('aria-label')));
  assert.ok(labels.length > 4);
  const [, tokens] = labels[0].match(/of ([\d,]+)/);
  let sum = 0;
  for (const label of labels) {
    const [, kept, of] = label.match(/^layer \d+, head \d+: ([\d,]+) of ([\d,]+) \(/);
    assert.equal(of, tokens);
    sum += Number(kept.replace(',', ''));
  }
  const share = sum / labels.length / Number(tokens.replace(',', ''));
  assert.ok(Math.abs(share - 0.5) < 0.01, `kept ${share} of all entries`);

  // A head that is chosen with the keyboard shows its text.
  await cells.first().focus();
  await page.keyboard.press('ArrowRight');
  await page.waitForFunction(() => document.querySelector('#head-title').textContent.startsWith('Layer 1, head 0'));
  assert.equal(await page.locator('#heat td button[aria-pressed=true]').count(), 1);
  const kept = Number((await text('#head-title')).match(/kept ([\d,]+)/)[1].replace(',', ''));
  const marked = await page.locator('#text mark').allTextContents();
  assert.ok(marked.length > 0 && marked.length <= kept);
  const whole = await page.locator('#text').evaluate(e => e.textContent);
  assert.ok(whole.includes(sample.context.slice(0, 200)), 'the text is the document');
  await shot('light');
});

test('it can be read in the dark and on a telephone', async () => {
  await page.emulateMedia({ colorScheme: 'dark' });
  await shot('dark');
  await page.setViewportSize({ width: 390, height: 800 });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= 390, `the page is ${wide} wide`);
  await shot('narrow');
  await page.setViewportSize({ width: 1280, height: 1000 });
});

test('thoughts are folded above the answer', async () => {
  await page.route('**/v1/chat/completions', route => {
    const delta = d => 'data: ' + JSON.stringify({ choices: [{ index: 0, delta: d, finish_reason: null }] }) + '\n\n';
    const body = delta({ role: 'assistant' }) + delta({ reasoning_content: 'Let me ' }) + delta({ reasoning_content: 'see.' }) + delta({ content: 'Yes.' }) + 'data: [DONE]\n\n';
    return route.fulfill({ contentType: 'text/event-stream', body });
  });
  await ask('Is it so?');
  await idle();
  const box = answers().last();
  assert.match(await box.innerText(), /Thoughts\s+Yes\./);
  assert.ok(!(await box.innerText()).includes('Let me see.'), 'they are folded');
  await box.locator('summary').click();
  assert.match(await box.innerText(), /Thoughts\s+Let me see\.\s+Yes\./);
  await page.unroute('**/v1/chat/completions');
});

test('Markdown is shown, and nothing in it runs', async () => {
  const answer = [
    '# Title', 'Some **bold *and* more**, `a < b`, a_name_with_lines, 2 * 3 * 4 and [a link](https://example.org/x).',
    '- one\n- two\n  1. inner\n  2. more\n- three', '```js\nif (a < b) {\n\n  **no**\n}\n```', '| a | b |\n| --- | --- |\n| 1 | **2** |', '> said\n> twice', '---',
    '<img src=x onerror="document.title = 1"> [no](javascript:alert(1))', '```\nnever closed',
  ].join('\n\n');
  await page.route('**/v1/chat/completions', route => {
    const delta = d => 'data: ' + JSON.stringify({ choices: [{ index: 0, delta: d, finish_reason: null }] }) + '\n\n';
    const pieces = answer.match(/[\s\S]{1,3}/g).map(content => delta({ content }));
    return route.fulfill({ contentType: 'text/event-stream', body: pieces.join('') + 'data: [DONE]\n\n' });
  });
  await ask('Show me.');
  await idle();
  const box = answers().last().locator('.text');
  assert.deepEqual(await box.evaluate(e => [...e.children].map(c => c.tagName)), ['H4', 'P', 'UL', 'PRE', 'TABLE', 'BLOCKQUOTE', 'HR', 'P', 'PRE']);
  assert.equal(await box.locator('p').first().innerHTML(), 'Some <strong class="">bold <em class="">and</em> more</strong>, <code class="">a &lt; b</code>, a_name_with_lines, 2 * 3 * 4 and '
    + '<a class="" href="https://example.org/x" target="_blank" rel="noopener noreferrer">a link</a>.');
  assert.equal(await box.locator('ul > li').count(), 3);
  assert.deepEqual(await box.locator('ul > li > ol > li').allInnerTexts(), ['inner', 'more']);
  assert.equal(await box.locator('pre').first().innerText(), 'if (a < b) {\n\n  **no**\n}');
  assert.equal(await box.locator('td strong').innerText(), '2');
  assert.equal(await box.locator('img').count(), 0);
  assert.equal(await box.locator('a').count(), 1);
  assert.equal(await box.locator('pre').last().innerText(), 'never closed');
  await shot('markdown');
  await page.unroute('**/v1/chat/completions');
});

test('a conversation outlives a reload', async () => {
  const before = await page.locator('#log').innerText(), title = await text('#chat-title');
  await page.reload();
  await page.waitForFunction(() => document.querySelector('.answer'));
  const shape = all => all.split('\n').filter(line => line && !/first token/.test(line) && !['Thoughts', 'Let me see.'].includes(line)).join('\n');
  assert.equal(shape(await page.locator('#log').innerText()), shape(before));
  assert.equal(await text('#chat-title'), title);
  await page.waitForFunction(() => document.querySelector('#text mark'));
  assert.ok(await page.locator('#welcome').isHidden());
  let asked;
  await page.route('**/v1/chat/completions', (route, request) => { asked ??= request.postDataJSON(); return route.continue(); });
  await ask('And now?');
  await idle();
  assert.ok(asked.messages.some(m => m.content === 'Show me.'), 'it goes on');
  assert.ok(asked.document, 'about the same document');
  await page.fill('#source', sample.context); // nobody has put it back
  await page.unroute('**/v1/chat/completions');
});

test('how much of a document is read is shown', async () => {
  let asked = 0;
  const doc = { id: 'doc_1', object: 'document', status: 'processing', progress: 0, tokens: 10, name: '' };
  const answer = (route, more) => route.fulfill({ contentType: 'application/json', body: JSON.stringify({ ...doc, ...more }) });
  await page.route('**/v1/documents?wait=false', route => answer(route, {}));
  await page.route('**/v1/documents/doc_1', route => answer(route, asked < 8 ? { progress: 0.42 } : { status: 'failed', error: 'enough' }));
  await page.click('#read');
  await page.waitForFunction(() => document.querySelector('#reading').textContent.startsWith('Reading: 42 %'));
  assert.equal(await page.locator('#progress').evaluate(e => e.value), 0.42);
  asked = 8;
  await page.waitForFunction(() => document.querySelector('#document-error').textContent === 'enough');
  assert.ok(await page.locator('#progress').isHidden());
  await page.unroute('**/v1/documents?wait=false');
  await page.unroute('**/v1/documents/doc_1');
});

test('a file that was chosen can be chosen again', async () => {
  for (const content of ['as it was', 'as it is']) {
    await page.setInputFiles('#file', { name: 'twice.txt', mimeType: 'text/plain', buffer: Buffer.from(content) });
    await page.waitForFunction(content => document.querySelector('#source').value === content, content);
    assert.equal(await page.inputValue('#file'), '', 'to the browser the next choice is a change');
  }
  await page.fill('#source', '');
  await page.click('#read');
  assert.match(await text('#document-error'), /no text yet/);
});

test('a column that fails ends the other', async () => {
  const refused = 'there is no document of this name';
  const { data } = await (await fetch(origin + '/v1/documents', { headers: { Authorization: 'Bearer ' + key } })).json();
  const full = data.find(d => !d.kv_compression).id;
  await page.route('**/v1/chat/completions', (route, request) => {
    if (request.postDataJSON().document !== full) return; // an answer that never comes
    return route.fulfill({ status: 404, contentType: 'application/json', body: JSON.stringify({ error: { message: refused } }) });
  });
  await ask('Is it so?');
  await idle();
  assert.equal(await text('#chat-error'), refused);
  assert.equal(await page.inputValue('#question'), 'Is it so?');
  await page.unroute('**/v1/chat/completions');
  await page.fill('#question', '');
});

test('a server that is gone is said to be', async () => {
  const gone = 'the server cannot be reached';
  await page.route('**/v1/**', route => route.abort());
  const before = await text('#head-title');
  await page.locator('#heat td button').last().click();
  await page.waitForFunction(() => document.querySelector('#view-error').textContent);
  assert.equal(await text('#view-error'), gone);
  assert.equal(await text('#head-title'), before, 'it names the head whose text is there');
  await ask('Is it so?');
  await idle();
  assert.equal(await text('#chat-error'), gone);
  await page.unroute('**/v1/**');
  await page.fill('#question', '');
  await page.locator('#heat td button').last().click();
  await page.waitForFunction(before => document.querySelector('#head-title').textContent !== before, before);
  assert.equal(await text('#view-error'), '');
});

test('text has enough contrast in both schemes', async () => {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    const poor = await page.evaluate(() => {
      const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
      const paint = colors => { // as it is shown, layer over layer
        for (const c of colors) { pen.fillStyle = c; pen.fillRect(0, 0, 1, 1); }
        return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
      };
      const light = rgb => rgb.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const out = [];
      for (const e of document.querySelectorAll('body *')) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
        if (!own || !e.checkVisibility() || e.disabled || e.id === 'text' || e.tagName === 'OPTION') continue; // evicted text is faded on purpose
        const behind = [];
        for (let x = e; x; x = x.parentElement) behind.unshift(getComputedStyle(x).backgroundColor);
        const [a, b] = [light(paint(behind)), light(paint([...behind, getComputedStyle(e).color]))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) out.push(`${e.tagName} ${e.id} ${e.textContent.slice(0, 20)}: ${ratio.toFixed(2)}`);
      }
      return out;
    });
    assert.deepEqual(poor, [], colorScheme);
  }
});

test('every control has a name', async () => {
  const nameless = await page.evaluate(() => [...document.querySelectorAll('button, input, select, textarea')]
    .filter(e => !e.hidden && !(e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim())).map(e => e.id || e.outerHTML));
  assert.deepEqual(nameless, []);
});

test('what the server refuses is said', async () => {
  await page.click('#close');
  await ask('word '.repeat(3000));
  await page.waitForFunction(() => document.querySelector('#chat-error').textContent);
  assert.match(await text('#chat-error'), /maximum context length is 2048 tokens/);
  assert.equal(await page.inputValue('#question'), 'word '.repeat(3000).trim(), 'the question is not lost');
  complaints.length = 0; // the browser tells of every 400
});

test('a document of before is opened from the list', async () => {
  await page.reload();
  await page.waitForSelector('#stored-label:not([hidden])');
  const options = await page.locator('#stored option').allTextContents();
  assert.equal(options.length, 3, options.join('; ')); // none, compressed, full
  await page.selectOption('#stored', { label: options.find(o => o.includes('50 % removed')) });
  await page.waitForFunction(() => document.querySelector('#text mark'));
});

test('what can work is offered, and explained', async () => {
  const offered = () => page.locator('#allocator option').allTextContents();
  await page.selectOption('#metric', 'knorm');
  assert.equal(await page.locator('#allocator').inputValue(), 'uniform', 'scores of heads cannot be compared');
  await page.selectOption('#metric', 'key_distance');
  assert.equal(await page.locator('#allocator').inputValue(), 'adakv');
  await page.selectOption('#metric', 'keydiff');
  assert.ok((await offered()).includes('lukv'), 'there is a profile');
  await page.selectOption('#allocator', 'lukv');
  assert.match(await text('#explained'), /mean key.*\. Gives each head what its measured usefulness deserves/);
  await page.route('**/v1/kv_compression', async route => {
    const known = await (await route.fetch()).json();
    return route.fulfill({ contentType: 'application/json', body: JSON.stringify({ ...known, profiles: [], profiled_metrics: [] }) });
  });
  await page.reload();
  await page.waitForFunction(() => document.querySelector('#metric').options.length > 0);
  const names = await offered();
  assert.ok(names.includes('uniform') && names.includes('adakv'));
  for (const name of ['lukv', 'duo', 'headkv']) assert.ok(!names.includes(name), name);
  await page.unroute('**/v1/kv_compression');
});

test('many layers have room in a wide window and in a narrow one', async () => {
  await page.reload();
  await page.waitForSelector('#stored-label:not([hidden])');
  const doc = await page.locator('#stored option').nth(1).getAttribute('value');
  await page.route(`**/v1/documents/${doc}/kept`, async route => {
    const kept = Array.from({ length: 30 }, (_, l) => Array.from({ length: 3 }, (_, h) => 10 * l + h));
    return route.fulfill({ contentType: 'application/json', body: JSON.stringify({ layers: 30, heads: 3, tokens: 300, kept }) });
  });
  await page.selectOption('#stored', doc);
  for (const [width, rows] of [[1280, 3], [380, 30]]) {
    await page.setViewportSize({ width, height: 1000 });
    await page.waitForFunction(rows => document.querySelectorAll('#heat tbody tr').length === rows, rows);
    const [scroll, room] = await page.locator('#view .scroll').evaluate(e => [e.scrollWidth, e.clientWidth]);
    assert.ok(scroll <= room, `the map of ${scroll} in ${room}`);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= width, `the page is ${wide} wide`);
    await shot('layers-' + width);
  }
  await page.setViewportSize({ width: 1280, height: 1000 });
  await page.unroute(`**/v1/documents/${doc}/kept`);
  await page.selectOption('#stored', '');
  await page.selectOption('#stored', doc);
  await page.waitForFunction(() => document.querySelector('#text mark'));
});

test('a document belongs to the model that read it', async () => {
  await page.evaluate(() => document.querySelector('#model').append(new Option('other', 'other')));
  const doc = { id: 'doc_1', object: 'document', status: 'processing', progress: 0, tokens: 10, name: '' };
  let done = false;
  const answer = route => route.fulfill({ contentType: 'application/json', body: JSON.stringify({ ...doc, status: done ? 'ready' : 'processing' }) });
  await page.route('**/v1/documents?wait=false', answer);
  await page.route('**/v1/documents/doc_1', answer);
  await page.fill('#source', 'some text');
  await page.click('#read');
  await page.selectOption('#model', 'other');
  done = true;
  await page.waitForFunction(() => document.querySelector('#reading').textContent.startsWith('Read 10 tokens'));
  assert.match(await text('#reading'), /with needle\/llama\.$/);
  assert.equal(await text('#chat-title'), 'Conversation', 'none is open');
  await page.unroute('**/v1/documents?wait=false');
  await page.unroute('**/v1/documents/doc_1');
});

test('another key has other documents', async () => {
  await page.reload();
  await page.waitForSelector('#stored-label:not([hidden])');
  await page.selectOption('#stored', { index: 1 });
  await page.waitForFunction(() => document.querySelector('#text mark'));
  await page.click('#access summary');
  await page.fill('#key', 'wrong');
  await page.press('#key', 'Tab');
  await page.waitForSelector('#access[open]');
  assert.ok(await page.locator('#memory').isHidden());
  assert.equal(await text('#chat-title'), 'Conversation');
  await page.fill('#key', key);
  await page.press('#key', 'Tab');
  await page.waitForFunction(() => !document.querySelector('#chat-error').textContent);
  complaints.length = 0; // the browser tells of every request that failed
});

test('a document with a system message can be asked about', async () => {
  const put = await fetch(origin + '/v1/documents', {
    method: 'POST', headers: { Authorization: 'Bearer ' + key, 'Content-Type': 'application/json' },
    body: JSON.stringify({ text: sample.context, system: 'Be brief.', name: 'with a system message' }),
  });
  assert.equal(put.status, 201);
  await page.reload();
  await page.waitForSelector('#stored-label:not([hidden])');
  const options = await page.locator('#stored option').allTextContents();
  await page.selectOption('#stored', { label: options.find(o => o.startsWith('with a system message')) });
  await page.waitForFunction(() => document.querySelector('#text mark'));
  await ask('Is it so?');
  await idle();
  assert.equal(await text('#chat-error'), '');
  assert.match(await answers().last().innerText(), /first token/);
});

test('the keyboard keeps its place', async () => {
  const focused = () => page.evaluate(() => document.activeElement.id);
  await page.click('#clear');
  let answer;
  await page.route('**/v1/chat/completions', () => answer?.()); // which never comes
  const asked = new Promise(done => { answer = done; });
  await page.fill('#question', 'Is it so?');
  await page.focus('#send');
  await page.keyboard.press('Enter');
  await asked;
  assert.equal(await focused(), 'stop');
  await page.keyboard.press('Enter');
  await idle();
  assert.equal(await focused(), 'send');
  await page.unroute('**/v1/chat/completions');
  await page.fill('#source', 'some text to read');
  await page.focus('#read');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => /^Read /.test(document.querySelector('#reading').textContent));
  assert.equal(await focused(), 'read');
});

test('a file dropped in while another is read waits for its turn', async () => {
  let status = 'processing', puts = 0;
  const answer = route => route.fulfill({ contentType: 'application/json', body: JSON.stringify({ id: 'doc_1', status, tokens: 10, error: 'enough' }) });
  await page.route('**/v1/documents?wait=false', route => { puts++; return answer(route); });
  await page.route('**/v1/documents/doc_1', answer);
  await page.uncheck('#compare');
  await page.fill('#source', 'the first');
  await page.click('#read');
  const drop = async file => {
    const data = await page.evaluateHandle(([name, bytes]) => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(bytes)], name));
      return data;
    }, file);
    await page.dispatchEvent('#drop', 'drop', { dataTransfer: data });
  };
  await drop(['second.txt', [...Buffer.from('the second')]]);
  await page.waitForFunction(() => document.querySelector('#source').value === 'the second');
  status = 'failed';
  await page.waitForFunction(() => document.querySelector('#document-error').textContent === 'enough');
  assert.equal(puts, 1);
  await drop(['picture.png', [0x89, 0x50]]);
  await page.waitForFunction(() => document.querySelector('#document-error').textContent !== 'enough');
  assert.equal(await text('#document-error'), 'picture.png is not a text in UTF-8');
  await page.evaluate(() => { File.prototype.arrayBuffer = () => Promise.reject(new DOMException('', 'NotFoundError')); }); // as folders do
  await drop(['folder', []]);
  await page.waitForFunction(() => /^folder/.test(document.querySelector('#document-error').textContent));
  assert.equal(await text('#document-error'), 'folder cannot be read');
  await page.unroute('**/v1/documents?wait=false');
  await page.unroute('**/v1/documents/doc_1');
});

test('what is set is what is shown, after Back, too', async () => {
  await page.locator('#ratio').fill('0.5');
  await page.goto('about:blank');
  await page.goBack();
  await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
  assert.equal(await text('#ratio-label'), Number(await page.inputValue('#ratio')) * 100 + ' %');
});

test('the context of a model is shown once it has been loaded', async () => {
  let loaded = false;
  await page.route('**/v1/models', route => route.fulfill({
    contentType: 'application/json', body: JSON.stringify({ object: 'list', data: [{ id: 'needle/llama', ...loaded && { max_model_len: 2048 } }] }),
  }));
  await page.reload();
  await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
  assert.equal(await text('#about'), '');
  loaded = true;
  await ask('hello');
  await idle();
  await page.waitForFunction(() => /2,048 tokens/.test(document.querySelector('#about').textContent)); // asked for after the answer
  await page.unroute('**/v1/models');
});

test('the server\'s own policy keeps its parameters', async () => {
  const own = { metric: { name: 'snapkv', window: 8 }, allocator: { name: 'headkv', importance: [[1]] }, ratio: 0.5 };
  await page.route('**/v1/kv_compression', async route => {
    const known = await (await route.fetch()).json();
    return route.fulfill({ contentType: 'application/json', body: JSON.stringify({ ...known, default: own }) });
  });
  const asked = [];
  await page.route('**/v1/documents?wait=false', (route, request) => {
    asked.push(request.postDataJSON().kv_compression);
    return route.fulfill({ contentType: 'application/json', body: JSON.stringify({ id: 'doc_1', status: 'failed', error: 'enough' }) });
  });
  await page.reload();
  await page.waitForFunction(() => document.querySelector('#metric').options.length > 0);
  await page.uncheck('#compare');
  await page.fill('#source', 'some text');
  for (const metric of ['snapkv', 'keydiff']) {
    await page.selectOption('#metric', metric);
    await page.click('#read');
    await page.waitForFunction(() => document.querySelector('#document-error').textContent === 'enough' && !document.querySelector('#read').disabled);
  }
  assert.deepEqual(asked.map(p => p.metric), [own.metric, 'keydiff']);
  assert.deepEqual(asked.map(p => p.allocator), [own.allocator, own.allocator]);
  await page.unroute('**/v1/kv_compression');
  await page.unroute('**/v1/documents?wait=false');
});

test('the page had nothing to complain about', () => assert.deepEqual(complaints, []));
