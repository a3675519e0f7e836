package serve

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lukv/lukv/engine"
)

// Ollama's API as a translation into chat and text completions. Durations are nanoseconds,
// streams are lines of JSON, and are the default.

// ollamaBody reads a request. Its model may carry ollama's tag for the newest version.
func (s *Server) ollamaBody(r *http.Request) (*fields, error) {
	f, err := body(r)
	if err != nil {
		return nil, err
	}
	id := cmp.Or(f.str("model"), f.str("name"))
	if err := f.failed(); err != nil {
		return nil, err
	}
	if id == "" {
		return nil, invalid("model", "model is required")
	}
	if plain := strings.TrimSuffix(id, ":latest"); s.models.find(id) == nil && plain != "" {
		id = plain
	}
	f.values["model"], err = json.Marshal(id)
	return f, err
}

// failed returns the first error of the fields, nil if there is none.
func (f *fields) failed() error {
	if f.err != nil {
		return f.err
	}
	return nil
}

// ollamaPassed are fields beside the options that mean the same in a chat.
var ollamaPassed = append([]string{"model", "kv_compression", "document", "cache_salt"}, constraints...)

// ollamaOptions are options and their names in a chat; empty: the same.
var ollamaOptions = map[string]string{
	"temperature": "", "top_p": "", "top_k": "", "min_p": "", "seed": "", "stop": "", "presence_penalty": "", "frequency_penalty": "",
	"repeat_penalty": "repetition_penalty", "num_predict": "max_tokens",
}

// harmlessOptions say how ollama uses the machine, or have no meaning here, with any value.
var harmlessOptions = []string{
	"num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "numa", "low_vram", "f16_kv",
	"vocab_only", "mirostat_eta", "mirostat_tau", "repeat_last_n", "penalize_newline", "logits_all", "embedding_only",
}

// ollamaFields returns the fields of a chat or text completion that options, format, think
// and the fields of a chat stand for, and the names of what they come from.
func ollamaFields(f *fields, own names) object {
	out := object{}
	for key, v := range chatFields(f, ollamaPassed) {
		if key != "format" { // which is another one here
			out[key] = v
		}
	}
	refuseOfChat(f, "format")
	if o := f.object("options"); o != nil {
		for key := range o.values {
			to, known := ollamaOptions[key]
			switch neutral, alters := altering[key]; {
			case alters && !known:
				refuse(o, key, neutral...)
			case slices.Contains(harmlessOptions, key):
			case !known:
				o.fail(key, "unknown")
			case key == "num_predict":
				if n := o.integer(key, -1, -2, math.MaxInt32); n == 0 {
					o.fail(key, "found 0, expected at least 1, or -1 for no limit")
				} else if n > 0 {
					out["max_tokens"] = n
				}
				own["max_tokens"] = "options.num_predict"
			case o.has(key):
				if to == "" {
					to = key
				}
				out[to], own[to] = o.raw(key), "options."+key
			}
		}
		if o.integer("repeat_last_n", -1, -1, math.MaxInt32) == 0 { // penalties look at no token
			for _, penalty := range []string{"repetition_penalty", "presence_penalty", "frequency_penalty"} {
				delete(out, penalty)
			}
			out["repetition_penalty"] = 1
		}
		f.adopt(o)
	}
	if v := f.raw("format"); v != nil && string(v) != `""` {
		own["response_format"], own["response_format.json_schema"], own["response_format.json_schema.schema"] = "format", "format", "format"
		switch {
		case string(v) == `"json"`:
			out["response_format"] = object{"type": "json_object"}
		case v[0] == '{':
			out["response_format"] = object{"type": "json_schema", "json_schema": object{"name": "format", "schema": v}}
		default:
			f.fail("format", "found %.40s, expected \"json\" or a JSON Schema", v)
		}
	}
	switch v := f.raw("think"); {
	case v == nil:
	case v[0] == '"':
		out["chat_template_kwargs"] = object{"enable_thinking": true, "reasoning_effort": f.str("think")}
	default:
		out["chat_template_kwargs"] = object{"enable_thinking": f.boolean("think")}
	}
	refuse(f, "logprobs", "false")
	return out
}

// streams reports whether a stream is asked for, as it is by default.
func streams(f *fields) bool { return !f.has("stream") || f.boolean("stream") }

// ollamaChat answers /api/chat.
func (s *Server) ollamaChat(w http.ResponseWriter, r *http.Request) error {
	f, err := s.ollamaBody(r)
	if err != nil {
		return err
	}
	own := names{}
	chat := ollamaFields(f, own)
	if chat["messages"] = ollamaMessages(f); len(f.list("messages", maxMessages)) == 0 && f.failed() == nil {
		return s.ollamaLoad(w, r, f, object{"message": object{"role": "assistant", "content": ""}})
	}
	if v := f.raw("tools"); v != nil && string(v) != "[]" {
		chat["tools"] = v
	}
	return s.ollamaAnswer(w, r, f, chat, own, false)
}

// ollamaMessages translates a conversation. Calls have no ids: they are numbered, and
// results belong to them in order.
func ollamaMessages(f *fields) []object {
	list := f.objects("messages", maxMessages)
	out, calls, results := []object{}, 0, 0
	for _, m := range list {
		refuse(m, "images")
		x := object{"role": m.str("role"), "content": m.str("content")}
		if m.has("thinking") {
			x["reasoning_content"] = m.str("thinking")
		}
		if x["role"] == "tool" {
			x["tool_call_id"] = callID(results)
			results++
		}
		var made []object
		for _, c := range m.objects("tool_calls", maxTools) {
			fn := c.object("function")
			if fn == nil {
				c.fail("function", "missing")
			} else {
				arguments := fn.raw("arguments")
				if arguments == nil {
					arguments = json.RawMessage("{}")
				}
				if arguments[0] != '{' {
					fn.fail("arguments", "found %s, expected an object", kind(arguments))
				}
				made = append(made, object{"id": callID(calls), "type": "function", "function": object{"name": fn.str("name"), "arguments": string(arguments)}})
				calls++
				c.adopt(fn)
			}
			m.adopt(c)
		}
		if made != nil {
			x["tool_calls"] = made
		}
		f.adopt(m)
		out = append(out, x)
	}
	return out
}

// callID names a call; some templates need nine letters and digits.
func callID(n int) string { return fmt.Sprintf("call%05d", n) }

// ollamaGenerate answers /api/generate: a prompt in the model's format, or raw.
func (s *Server) ollamaGenerate(w http.ResponseWriter, r *http.Request) error {
	f, err := s.ollamaBody(r)
	if err != nil {
		return err
	}
	raw := f.boolean("raw")
	if raw && (alters(f, "template", `""`) || alters(f, "system", `""`) || alters(f, "context")) {
		return invalid("raw", "raw mode does not support template, system, or context") // as ollama says
	}
	if raw && alters(f, "think", "false") {
		f.fail("think", "not supported in raw mode, which has no chat template")
	}
	for _, key := range []string{"suffix", "template"} {
		refuse(f, key, `""`)
	}
	refuse(f, "images")
	refuse(f, "context")
	own := names{"messages": "prompt"}
	q := ollamaFields(f, own)
	prompt := f.str("prompt")
	if err := f.failed(); err != nil {
		return err
	}
	switch {
	case prompt == "":
		return s.ollamaLoad(w, r, f, object{"response": ""})
	case raw:
		q["prompt"] = prompt
		return s.ollamaRaw(w, r, f, q, own)
	}
	messages := []object{}
	if system := f.str("system"); system != "" {
		messages = append(messages, object{"role": "system", "content": system})
	}
	q["messages"] = append(messages, object{"role": "user", "content": prompt})
	return s.ollamaAnswer(w, r, f, q, own, true)
}

// ollamaLoad loads the model, as a request without a prompt or messages asks for.
func (s *Server) ollamaLoad(w http.ResponseWriter, r *http.Request, f *fields, answer object) error {
	v, err := s.served(r.Context(), f.str("model"))
	if err != nil {
		return err
	}
	answer["model"], answer["created_at"], answer["done"], answer["done_reason"] = v.id, time.Now().UTC(), true, "load"
	return writeJSON(w, answer)
}

// ollamaRaw answers with a continuation of the prompt.
func (s *Server) ollamaRaw(w http.ResponseWriter, r *http.Request, f *fields, q object, own names) error {
	of, err := fieldsOf(r, q)
	if err != nil {
		return err
	}
	c, err := s.textRequest(r, of)
	if err != nil {
		return own.rename(asError(err, holdsOf(r.Context()).maxLen))
	}
	if q["max_tokens"] == nil {
		c.queries[0].Sampling.MaxTokens = 0
	}
	a := &answering{
		sharedFields: &c.sharedFields, stream: streams(f), lines: true, collects: true, queries: c.queries, events: c.events,
		error: func(err error) *apiError { return own.rename(c.asError(err)) },
	}
	if err := f.failed(); err != nil {
		return err
	}
	return s.answer(w, r, a, newOllamaFormat(c.v.id, &chatRequest{}, true))
}

// fieldsOf returns fields made of values.
func fieldsOf(r *http.Request, values object) (*fields, error) {
	out := newFields(r.Context(), "")
	for k, v := range values {
		data, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		out.values[k] = data
	}
	return out, nil
}

// ollamaAnswer answers with the next message of a chat.
func (s *Server) ollamaAnswer(w http.ResponseWriter, r *http.Request, f *fields, chat object, own names, generate bool) error {
	stream := streams(f)
	if err := f.failed(); err != nil {
		return err
	}
	of, err := fieldsOf(r, chat)
	if err != nil {
		return err
	}
	c, err := s.chatRequest(r, of, false)
	if err != nil {
		return own.rename(asError(err, holdsOf(r.Context()).maxLen))
	}
	if v := f.raw("think"); v != nil && string(v) != "false" && !c.v.syntax.Reasons() {
		return invalid("think", "think: not supported by the chat template of the model %s", c.v.id)
	}
	c.own = own
	a := c.answering(stream, true)
	a.lines = true
	return s.answer(w, r, a, newOllamaFormat(c.v.id, c, generate))
}

// ollamaFormat writes an answer in ollama's form.
type ollamaFormat struct {
	model    string
	generate bool // otherwise it is a message
	began    time.Time
	blocks   blocks
	calls    []object
}

func newOllamaFormat(model string, c *chatRequest, generate bool) *ollamaFormat {
	return &ollamaFormat{model: model, generate: generate, began: time.Now(), blocks: blocks{c: c}}
}

// line returns an object with a piece of the answer.
func (f *ollamaFormat) line(text, thinking string, calls []object) object {
	out := object{"model": f.model, "created_at": time.Now().UTC(), "done": false}
	if f.generate {
		out["response"] = text
		if thinking != "" {
			out["thinking"] = thinking
		}
		return out
	}
	message := object{"role": "assistant", "content": text}
	if thinking != "" {
		message["thinking"] = thinking
	}
	if calls != nil {
		message["tool_calls"] = calls
	}
	out["message"] = message
	return out
}

func (f *ollamaFormat) begin(out *eventStream) {
	f.blocks.ended = func(b *block) {
		arguments := json.RawMessage(b.text.String())
		if b.kind != callBlock || len(arguments) == 0 || arguments[0] != '{' || !json.Valid(arguments) { // a call that was cut is none
			return
		}
		call := object{"function": object{"index": len(f.calls), "name": b.name, "arguments": arguments}}
		if f.calls = append(f.calls, call); out != nil {
			out.send(f.line("", "", []object{call}))
		}
	}
	if out == nil {
		return
	}
	f.blocks.more = func(b *block, text string, _ []chatLogProb) {
		switch b.kind {
		case textBlock:
			out.send(f.line(text, "", nil))
		case reasoningBlock:
			out.send(f.line("", text, nil))
		}
	}
}

func (f *ollamaFormat) add(_ *eventStream, e *answerEvent) { f.blocks.add(e) }

func (f *ollamaFormat) end(w http.ResponseWriter, out *eventStream, sum *outcome) error {
	f.blocks.close()
	var text, thinking strings.Builder
	for _, b := range f.blocks.list {
		switch b.kind {
		case textBlock:
			text.WriteString(b.text.String())
		case reasoningBlock:
			thinking.WriteString(b.text.String())
		}
	}
	last := f.line("", "", nil)
	if out == nil {
		last = f.line(text.String(), thinking.String(), f.calls)
	}
	f.finish(last, sum.tokens)
	if sum.cache != nil {
		last["kv_cache"] = sum.cache
	}
	if out == nil {
		return writeJSON(w, last)
	}
	out.send(last)
	return nil
}

// finish adds the end of the answer to the last object.
func (f *ollamaFormat) finish(last object, u engine.Usage) {
	reason := "stop"
	if f.blocks.finish == "length" {
		reason = "length"
	}
	last["done"], last["done_reason"] = true, reason
	last["total_duration"], last["load_duration"] = time.Since(f.began), u.Queued
	last["prompt_eval_count"], last["prompt_eval_duration"] = u.Prompt, u.Prefill
	last["eval_count"], last["eval_duration"] = u.Generated, u.Decoding
}

func (f *ollamaFormat) fail(out *eventStream, e *apiError) {
	out.send(object{"error": e.report(out.w).Message})
}

// writeOllamaError answers with an error in ollama's form.
func writeOllamaError(w http.ResponseWriter, e *apiError) {
	e.head(w)
	w.WriteHeader(e.status)
	writeJSON(w, object{"error": e.Message})
}
