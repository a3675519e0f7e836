package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// responseRequest is a request to /v1/responses, which is stateless: each has the whole
// conversation.
type responseRequest struct {
	c      *chatRequest
	echo   object // fields of the request that answers repeat
	stream bool
}

// responseRequest translates a request into a chat.
func (s *Server) responseRequest(r *http.Request, f *fields) (*responseRequest, error) {
	for _, key := range []string{"previous_response_id", "conversation", "prompt"} {
		if f.has(key) {
			f.fail(key, "not supported: conversations are not stored, send the whole conversation as input")
		}
	}
	refuseOfChat(f, "text.format")
	refuseForeign(f, limitNames, "max_output_tokens", "max_tokens")
	refuseForeign(f, thoughtNames, "thinking_token_budget")
	for _, key := range stopNames {
		refuse(f, key)
	}
	refuse(f, "background", "false")
	refuse(f, "truncation", `"disabled"`)
	messages := []object{}
	if f.has("instructions") {
		messages = append(messages, object{"role": "system", "content": f.str("instructions")})
	}
	own := names{"messages": "input", "max_tokens": "max_output_tokens", "tool_choice.function": "tool_choice", "response_format": "structured_outputs"}
	messages = responseInput(f, messages, own)
	chat := object{"messages": messages}
	for _, v := range f.texts("include", 64) {
		if v == "message.output_text.logprobs" {
			chat["logprobs"], chat["top_logprobs"] = true, f.integer("top_logprobs", 0, 0, maxTopLogProbs)
		}
	}
	if chat["logprobs"] == nil {
		refuse(f, "top_logprobs", "0") // has no effect
	}
	if f.has("max_output_tokens") {
		chat["max_tokens"] = f.integer("max_output_tokens", 0, 1, 1<<31-1)
	}
	if list := f.objects("tools", maxTools); len(list) > 0 {
		chat["tools"] = responseTools(f, list, own)
	}
	choice := f.raw("tool_choice")
	if choice != nil && choice[0] == '{' {
		o := f.object("tool_choice")
		chat["tool_choice"] = object{"type": o.str("type"), "function": object{"name": o.str("name")}}
		f.adopt(o)
	} else if choice != nil {
		chat["tool_choice"] = choice
	}
	if o := f.object("text"); o != nil {
		if format := o.object("format"); format != nil {
			of := object{"type": format.str("type")}
			if of["type"] == "json_schema" {
				of["json_schema"] = object{"name": format.raw("name"), "schema": format.raw("schema"), "strict": format.boolean("strict")}
			}
			chat["response_format"] = of
			if of["type"] != "text" { // otherwise another field may give the format
				own["response_format"], own["response_format.json_schema"] = "text.format", "text.format"
			}
			o.adopt(format)
		}
		for key := range o.values {
			if key != "format" && key != "verbosity" {
				o.fail(key, "unknown, expected format or verbosity")
			}
		}
		f.adopt(o)
	}
	out := &responseRequest{stream: f.boolean("stream")}
	var err error
	if out.c, err = s.asChat(r, f, chat, own, false); err != nil {
		return nil, err
	}
	or := func(key string, missing any) any {
		if v := f.raw(key); v != nil {
			return v
		}
		return missing
	}
	sampling := out.c.q.Sampling
	out.echo = object{
		"instructions": or("instructions", nil), "max_output_tokens": or("max_output_tokens", nil), "metadata": or("metadata", object{}),
		"parallel_tool_calls": or("parallel_tool_calls", true), "temperature": sampling.Temperature, "top_p": sampling.TopP,
		"text": or("text", object{"format": object{"type": "text"}}), "tool_choice": or("tool_choice", "auto"), "tools": or("tools", []any{}),
		"reasoning": or("reasoning", object{"effort": nil, "summary": nil}), "truncation": "disabled", "store": false,
		"previous_response_id": nil, "access_programs": nil, "background": false, "user": or("user", nil), "service_tier": "default",
	}
	return out, nil
}

// responseInput adds the conversation to the messages of a chat, and the names of its items.
func responseInput(f *fields, out []object, own names) []object {
	v := f.raw("input")
	switch {
	case v == nil:
		f.fail("input", "missing")
		return nil
	case v[0] == '"':
		return append(out, object{"role": "user", "content": f.str("input")})
	}
	// The item before was reasoning, or a call: what follows may belong to the same message.
	reasoned, called := false, false
	// assistant returns the last message, or a new one of the assistant.
	assistant := func(last bool) object {
		if !last {
			out = append(out, object{"role": "assistant", "content": nil})
		}
		return out[len(out)-1]
	}
	for _, item := range f.objects("input", maxMessages) {
		switch t := item.str("type"); t {
		case "", "message":
			if !item.has("content") {
				item.fail("content", "missing")
			}
			m := object{"role": item.str("role"), "content": item.text("content", "input_text", "output_text", "text")}
			if reasoned && m["role"] == "assistant" {
				assistant(true)["content"] = m["content"]
			} else {
				out = append(out, m)
			}
			own[fmt.Sprintf("messages[%d]", len(out)-1)] = item.path
			reasoned, called = false, false
		case "function_call":
			n := len(out)
			m := assistant(called || n > 0 && out[n-1]["role"] == "assistant" && out[n-1]["tool_calls"] == nil)
			calls, _ := m["tool_calls"].([]object)
			own[fmt.Sprintf("messages[%d].tool_calls[%d].function", len(out)-1, len(calls))] = item.path
			m["tool_calls"] = append(calls, object{"id": item.str("call_id"), "type": "function", "function": object{"name": item.str("name"), "arguments": item.str("arguments")}})
			reasoned, called = false, true
		case "function_call_output":
			if !item.has("output") {
				item.fail("output", "missing")
			}
			out = append(out, object{"role": "tool", "tool_call_id": item.str("call_id"), "content": item.text("output", "input_text", "output_text", "text")})
			reasoned, called = false, false
		case "reasoning": // that of other models may be a summary or encrypted: nothing that this one reads
			if text := item.text("content", "reasoning_text", "text"); text != "" {
				m := assistant(reasoned)
				earlier, _ := m["reasoning_content"].(string)
				m["reasoning_content"], reasoned = earlier+text, true // the template decides whether the model sees it
			}
			called = false
		default:
			item.fail("type", "%q is not supported, expected message, function_call, function_call_output or reasoning", t)
		}
		f.adopt(item)
	}
	return out
}

// toolDefinition is a function, its fields in the order in which templates show them.
type toolDefinition struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
		Strict      bool            `json:"strict,omitempty"`
	} `json:"function"`
}

func responseTools(f *fields, list []*fields, own names) []toolDefinition {
	out := make([]toolDefinition, len(list))
	for i, o := range list {
		own[fmt.Sprintf("tools[%d].function", i)] = o.path
		t := &out[i]
		t.Type = o.str("type")
		t.Function.Name, t.Function.Description = o.str("name"), o.str("description")
		t.Function.Parameters, t.Function.Strict = o.raw("parameters"), o.boolean("strict")
		f.adopt(o)
	}
	return out
}

// responseFormat writes an answer as a response.
type responseFormat struct {
	q       *responseRequest
	id      string
	created int64
	blocks  blocks
	items   []object
	events  int // of a stream so far
}

// object describes the response; sum is nil until all of the answer has come.
func (a *responseFormat) object(sum *outcome) object {
	out := object{
		"id": a.id, "object": "response", "created_at": a.created, "model": a.q.c.v.id, "status": "in_progress",
		"error": nil, "incomplete_details": nil, "output": append([]object{}, a.items...), "usage": nil,
	}
	for k, v := range a.q.echo {
		out[k] = v
	}
	if sum == nil {
		return out
	}
	if out["status"] = "completed"; a.blocks.finish == "length" {
		out["status"], out["incomplete_details"] = "incomplete", object{"reason": "max_output_tokens"}
	}
	u := sum.tokens
	out["usage"] = object{
		"input_tokens": u.Prompt, "input_tokens_details": object{"cached_tokens": u.Cached, "cache_write_tokens": 0, "evicted_tokens": u.Evicted},
		"output_tokens": u.Generated, "output_tokens_details": object{"reasoning_tokens": u.Reasoning}, "total_tokens": u.Prompt + u.Generated,
	}
	if sum.cache != nil {
		out["kv_cache"] = sum.cache
	}
	return out
}

// status returns the status of a block that is over: the last one of an answer that
// reached its length is incomplete, and so is a call that a stop text cut.
func (b *blocks) status(x *block) string {
	cut := x.n == len(b.list)-1 && b.finish == "length"
	if cut || x.kind == callBlock && !json.Valid([]byte(x.text.String())) {
		return "incomplete"
	}
	return "completed"
}

// item describes a block.
func (a *responseFormat) item(b *block, status string) object {
	switch b.kind {
	case callBlock:
		return object{"type": "function_call", "id": itemID("fc_", a.id, b.n), "call_id": b.id, "name": b.name, "arguments": b.text.String(), "status": status}
	case reasoningBlock:
		content := []object{}
		if status != "in_progress" {
			content = append(content, b.part(false))
		}
		return object{"type": "reasoning", "id": itemID("rs_", a.id, b.n), "summary": []any{}, "content": content, "status": status}
	}
	content := []object{}
	if status != "in_progress" {
		content = append(content, b.part(false))
	}
	return object{"type": "message", "id": itemID("msg_", a.id, b.n), "role": "assistant", "content": content, "status": status}
}

// part describes the text of a block; with empty, as it begins.
func (b *block) part(empty bool) object {
	text := b.text.String()
	if empty {
		text = ""
	}
	if b.kind == reasoningBlock {
		return object{"type": "reasoning_text", "text": text}
	}
	probs := []chatLogProb{}
	if !empty && b.probs != nil {
		probs = b.probs
	}
	return object{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": probs}
}

// itemID names an item of a response.
func itemID(prefix, response string, n int) string {
	return prefix + response[len("resp_"):] + string(rune('a'+n%26)) + randomID()[:4]
}

// responses answers requests of OpenAI's newer API.
func (s *Server) responses(w http.ResponseWriter, r *http.Request) error {
	f, err := body(r)
	if err != nil {
		return err
	}
	q, err := s.responseRequest(r, f)
	if err != nil {
		return err
	}
	format := &responseFormat{q: q, id: "resp_" + randomID(), created: time.Now().Unix(), blocks: blocks{c: q.c}}
	return s.answer(w, r, q.c.answering(q.stream, true), format)
}

func (a *responseFormat) begin(out *eventStream) {
	a.blocks.begun = func(b *block) { a.items = append(a.items, a.item(b, "in_progress")) }
	a.blocks.ended = func(b *block) {
		done := a.item(b, a.blocks.status(b))
		done["id"] = a.items[b.n]["id"]
		a.items[b.n] = done
	}
	if out != nil {
		a.stream(out)
	}
}

// stream sends the first events of the answer, and lets every item be announced, sent in
// pieces, and repeated as a whole.
func (a *responseFormat) stream(out *eventStream) {
	event := func(name string, v object) { a.event(out, name, v) }
	event("response.created", object{"response": a.object(nil)})
	event("response.in_progress", object{"response": a.object(nil)})
	at := func(b *block, more object) object {
		more["output_index"], more["item_id"] = b.n, a.items[b.n]["id"]
		if b.kind != callBlock {
			more["content_index"] = 0
		}
		return more
	}
	begun, ended := a.blocks.begun, a.blocks.ended
	a.blocks.begun = func(b *block) {
		begun(b)
		event("response.output_item.added", object{"output_index": b.n, "item": a.items[b.n]})
		if b.kind != callBlock {
			event("response.content_part.added", at(b, object{"part": b.part(true)}))
		}
	}
	a.blocks.more = func(b *block, text string, probs []chatLogProb) {
		switch b.kind {
		case callBlock:
			event("response.function_call_arguments.delta", at(b, object{"delta": text}))
		case reasoningBlock:
			event("response.reasoning_text.delta", at(b, object{"delta": text}))
		default:
			event("response.output_text.delta", at(b, object{"delta": text, "logprobs": append([]chatLogProb{}, probs...)}))
		}
	}
	a.blocks.ended = func(b *block) {
		text := b.text.String()
		switch b.kind {
		case callBlock:
			event("response.function_call_arguments.done", at(b, object{"name": b.name, "arguments": text}))
		case reasoningBlock:
			event("response.reasoning_text.done", at(b, object{"text": text}))
		default:
			event("response.output_text.done", at(b, object{"text": text, "logprobs": b.part(false)["logprobs"]}))
		}
		if b.kind != callBlock {
			event("response.content_part.done", at(b, object{"part": b.part(false)}))
		}
		ended(b)
		event("response.output_item.done", object{"output_index": b.n, "item": a.items[b.n]})
	}
}

func (a *responseFormat) add(_ *eventStream, e *answerEvent) { a.blocks.add(e) }

func (a *responseFormat) end(w http.ResponseWriter, out *eventStream, sum *outcome) error {
	a.blocks.close()
	whole := a.object(sum)
	if out == nil {
		return writeJSON(w, whole)
	}
	a.event(out, fmt.Sprintf("response.%s", whole["status"]), object{"response": whole})
	return nil
}

func (a *responseFormat) fail(out *eventStream, e *apiError) {
	e = e.report(out.w)
	a.event(out, "error", object{"code": orNull(e.Code), "message": e.Message, "param": orNull(e.Param), "error": e})
}

// event writes a numbered event.
func (a *responseFormat) event(out *eventStream, name string, v object) {
	v["sequence_number"] = a.events
	a.events++
	out.typed(name, v)
}

// event writes a chunk with an event name.
func (s *eventStream) event(name string, v any) {
	s.prefix = "event: " + name + "\n"
	s.send(v)
	s.prefix = ""
}
