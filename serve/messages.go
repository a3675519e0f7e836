package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/lukv/lukv/engine"
)

// messageRequest is a request to /v1/messages, the Anthropic API.
type messageRequest struct {
	c      *chatRequest
	stream bool
}

// messageRequest translates a request into a chat; with counting, only its tokens
// matter.
func (s *Server) messageRequest(r *http.Request, f *fields, counting bool) (*messageRequest, error) {
	q := &messageRequest{stream: f.boolean("stream") && !counting}
	refuse(f, "mcp_servers")
	refuseOfChat(f, "output_config.format")
	refuseForeign(f, stopNames, "stop_sequences")
	refuseForeign(f, thoughtNames, "thinking", "thinking_token_budget")
	think, budget := thinkingBudget(f)
	messages := []object{}
	if f.has("system") {
		messages = append(messages, object{"role": "system", "content": f.text("system", "text")})
	}
	if !f.has("messages") {
		f.fail("messages", "missing")
	}
	for _, m := range f.objects("messages", maxMessages) {
		messages = append(messages, messageOf(m)...)
		f.adopt(m)
	}
	chat := object{"messages": messages}
	own := names{
		"stop": "stop_sequences", "tool_choice.function": "tool_choice", "continue_final_message": "messages", "response_format": "structured_outputs",
	}
	if n := len(messages); n > 0 && messages[n-1]["role"] == "assistant" && messages[n-1]["content"] == "" && messages[n-1]["tool_calls"] == nil {
		messages = messages[:n-1] // an empty one begins nothing
		chat["messages"] = messages
	}
	if n := len(messages); n > 0 && messages[n-1]["role"] == "assistant" {
		chat["continue_final_message"], chat["add_generation_prompt"] = true, false
	}
	if stops := f.texts("stop_sequences", maxStops); len(stops) > 0 {
		chat["stop"] = stops
	}
	if !counting {
		if !f.has("max_tokens") {
			f.fail("max_tokens", "missing")
		}
		chat["max_tokens"] = f.integer("max_tokens", 0, 1, 1<<31-1)
	}
	callsOfMessage(f, chat, own)
	messageOutput(f, chat, own)
	if counting {
		chat["stream"] = false
	}
	if think != nil && !f.has("chat_template_kwargs") {
		chat["chat_template_kwargs"], own["chat_template_kwargs"] = object{"enable_thinking": *think}, "thinking"
	}
	if budget > 0 {
		chat["thinking_token_budget"], own["thinking_token_budget"] = budget, "thinking.budget_tokens"
	}
	var err error
	if q.c, err = s.asChat(r, f, chat, own, counting); err != nil {
		return nil, err
	}
	if think != nil && *think && !q.c.v.syntax.Reasons() {
		return nil, invalid("thinking", "thinking: not supported by the chat template of the model %s", q.c.v.id)
	}
	return q, nil
}

// messageOutput translates the format of the answer: output_config.format, or its older
// name output_format.
func messageOutput(f *fields, chat object, own names) {
	o, path := f.object("output_format"), "output_format"
	if config := f.object("output_config"); config != nil {
		if of := config.object("format"); of != nil {
			if o != nil {
				f.fail("output_format", "found a second format of the answer, expected one of output_format and output_config.format")
			}
			o, path = of, "output_config.format"
		}
		for key := range config.values {
			if key != "format" && key != "effort" {
				config.fail(key, "unknown, expected format or effort")
			}
		}
		f.adopt(config)
	}
	if o == nil {
		return
	}
	if t := o.str("type"); t != "json_schema" {
		o.fail("type", "%q is not supported, expected json_schema", t)
	}
	chat["response_format"] = object{"type": "json_schema", "json_schema": object{"schema": o.raw("schema")}}
	own["response_format"], own["response_format.json_schema"] = path, path
	f.adopt(o)
}

// callsOfMessage translates the tools and which of them may be called.
func callsOfMessage(f *fields, chat object, own names) {
	if list := f.objects("tools", maxTools); len(list) > 0 {
		chat["tools"] = messageTools(f, list, own)
	}
	if o := f.object("tool_choice"); o != nil {
		chat["tool_choice"] = messageChoice(o)
		if o.boolean("disable_parallel_tool_use") {
			chat["parallel_tool_calls"] = false
		}
		f.adopt(o)
	}
}

// messageChoice translates tool_choice into that of a chat.
func messageChoice(o *fields) any {
	switch t := o.str("type"); t {
	case "any":
		return "required"
	case "tool":
		return object{"type": "function", "function": object{"name": o.str("name")}}
	case "auto", "none":
		return t
	default:
		o.fail("type", "%q is unknown, expected auto, any, tool or none", t)
		return nil
	}
}

func messageTools(f *fields, list []*fields, own names) []toolDefinition {
	out := make([]toolDefinition, len(list))
	for i, o := range list {
		if t := o.str("type"); t != "" && t != "custom" {
			o.fail("type", "%q is not supported, expected custom", t)
		}
		own[fmt.Sprintf("tools[%d].function", i)] = o.path
		own[fmt.Sprintf("tools[%d].function.parameters", i)] = o.path + ".input_schema"
		t := &out[i]
		t.Type = "function"
		t.Function.Name, t.Function.Description, t.Function.Parameters = o.str("name"), o.str("description"), o.raw("input_schema")
		f.adopt(o)
	}
	return out
}

// messageOf translates a message; each tool result becomes a message of its own.
func messageOf(m *fields) []object {
	role := m.str("role")
	if role != "user" && role != "assistant" {
		m.fail("role", "%q is unknown, expected user or assistant", role)
		return nil
	}
	v := m.raw("content")
	switch {
	case v == nil:
		m.fail("content", "missing")
		return nil
	case v[0] == '"':
		return []object{{"role": role, "content": m.str("content")}}
	}
	var p messageParts
	for _, b := range m.objects("content", maxParts) {
		p.add(b, role)
		m.adopt(b)
	}
	if p.texts > 0 || len(p.results) == 0 {
		own := object{"role": role, "content": p.text.String()}
		if len(p.calls) > 0 {
			own["tool_calls"] = p.calls
		}
		if p.reasoning.Len() > 0 { // the template decides whether the model sees it
			own["reasoning_content"] = p.reasoning.String()
		}
		p.results = append(p.results, own)
	}
	return p.results
}

// messageParts are the parts of a message, sorted.
type messageParts struct {
	results, calls  []object
	text, reasoning strings.Builder
	texts           int // parts of text
}

// add adds a part of a message of a role.
func (p *messageParts) add(b *fields, role string) {
	switch t := b.str("type"); {
	case t == "text":
		p.text.WriteString(b.required("text"))
		p.texts++
	case t == "tool_use" && role == "assistant":
		input := b.raw("input")
		if input == nil {
			input = json.RawMessage("{}")
		}
		if input[0] != '{' {
			b.fail("input", "found %s, expected an object", kind(input))
		}
		p.calls = append(p.calls, object{"id": b.str("id"), "type": "function", "function": object{"name": b.str("name"), "arguments": string(input)}})
	case t == "tool_result" && role == "user":
		p.results = append(p.results, object{"role": "tool", "tool_call_id": b.str("tool_use_id"), "content": b.text("content", "text")})
	case t == "thinking" && role == "assistant":
		p.reasoning.WriteString(b.str("thinking"))
	case t == "redacted_thinking" && role == "assistant": // from another model
	default:
		b.fail("type", "%q is not supported in a message with the role %s", t, role)
	}
}

// messageFormat writes an answer as a message.
type messageFormat struct {
	q      *messageRequest
	id     string
	blocks blocks
	ended  string // the stop sequence that ended it; empty: none did
}

// stop returns why the answer ended, and at which stop sequence.
func (a *messageFormat) stop() (reason string, sequence any) {
	b := &a.blocks
	last := b.list[len(b.list)-1]
	called := last.kind == callBlock && json.Valid([]byte(last.text.String())) // otherwise a stop sequence cut it
	switch {
	case b.finish == "length":
		return "max_tokens", nil
	case called:
		return "tool_use", nil
	case a.ended != "":
		return "stop_sequence", a.ended
	}
	return "end_turn", nil
}

// usage counts tokens as this API does: those from the cache are not input.
func (a *messageFormat) usage(u engine.Usage) object {
	return object{"input_tokens": u.Prompt - u.Cached, "cache_read_input_tokens": u.Cached, "cache_creation_input_tokens": 0, "output_tokens": u.Generated}
}

func (a *messageFormat) object(content []object, reason, sequence any, use object) object {
	return object{
		"id": a.id, "type": "message", "role": "assistant", "model": a.q.c.v.id, "content": content,
		"stop_reason": reason, "stop_sequence": sequence, "usage": use,
	}
}

// content describes a block; with empty, as it begins.
func (b *block) content(empty bool) object {
	text := b.text.String()
	if empty {
		text = ""
	}
	switch b.kind {
	case textBlock:
		return object{"type": "text", "text": text}
	case reasoningBlock:
		return object{"type": "thinking", "thinking": text, "signature": ""}
	}
	input := json.RawMessage(text)
	if !json.Valid(input) { // it was cut
		input = json.RawMessage("{}")
	}
	return object{"type": "tool_use", "id": b.id, "name": b.name, "input": input}
}

// messages answers requests of the Anthropic API.
func (s *Server) messages(w http.ResponseWriter, r *http.Request) error {
	f, err := body(r)
	if err != nil {
		return err
	}
	q, err := s.messageRequest(r, f, false)
	if err != nil {
		return err
	}
	return s.answer(w, r, q.c.answering(q.stream, true), &messageFormat{q: q, id: "msg_" + randomID(), blocks: blocks{c: q.c}})
}

func (a *messageFormat) begin(out *eventStream) {
	if out == nil {
		return
	}
	use := a.usage(engine.Usage{Prompt: len(a.q.c.q.Prompt)}) // how much came from the cache is known only at the end
	out.typed("message_start", object{"message": a.object([]object{}, nil, nil, use)})
	a.blocks.begun = func(b *block) {
		out.typed("content_block_start", object{"index": b.n, "content_block": b.content(true)})
	}
	a.blocks.more = func(b *block, text string, _ []chatLogProb) {
		delta := object{"type": "text_delta", "text": text}
		switch b.kind {
		case callBlock:
			delta = object{"type": "input_json_delta", "partial_json": text}
		case reasoningBlock:
			delta = object{"type": "thinking_delta", "thinking": text}
		}
		out.typed("content_block_delta", object{"index": b.n, "delta": delta})
	}
	a.blocks.ended = func(b *block) { out.typed("content_block_stop", object{"index": b.n}) }
}

func (a *messageFormat) add(_ *eventStream, e *answerEvent) {
	a.ended = e.stop
	a.blocks.add(e)
}

func (a *messageFormat) end(w http.ResponseWriter, out *eventStream, sum *outcome) error {
	a.blocks.close()
	reason, sequence := a.stop()
	if out != nil {
		out.typed("message_delta", object{"delta": object{"stop_reason": reason, "stop_sequence": sequence}, "usage": a.usage(sum.tokens)})
		out.typed("message_stop", object{})
		return nil
	}
	content := []object{}
	for _, x := range a.blocks.list {
		content = append(content, x.content(false))
	}
	return writeJSON(w, a.object(content, reason, sequence, a.usage(sum.tokens)))
}

func (a *messageFormat) fail(out *eventStream, e *apiError) {
	out.typed("error", object{"error": messageError(e.report(out.w))})
}

// typed writes an event whose data has its name as type.
func (s *eventStream) typed(name string, v object) {
	v["type"] = name
	s.event(name, v)
}

// countTokens returns the number of tokens in the prompt of a message.
func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) error {
	f, err := body(r)
	if err != nil {
		return err
	}
	if err := f.countTokens(); err != nil {
		return err
	}
	q, err := s.messageRequest(r, f, true)
	if err != nil {
		return err
	}
	return writeJSON(w, object{"input_tokens": len(q.c.q.Prompt)})
}

// messageError returns an error in the form of this API.
func messageError(e *apiError) object {
	kind := e.Type
	switch e.status {
	case http.StatusNotFound:
		kind = "not_found_error"
	case http.StatusRequestEntityTooLarge:
		kind = "request_too_large"
	case http.StatusServiceUnavailable:
		kind = "overloaded_error"
	case http.StatusInternalServerError:
		kind = "api_error"
	}
	return object{"type": kind, "message": e.Message}
}

// writeMessageError answers with an error in the form of this API.
func writeMessageError(w http.ResponseWriter, e *apiError) {
	e.head(w)
	w.Header().Set("Request-Id", w.Header().Get("X-Request-Id"))
	w.WriteHeader(e.status)
	writeJSON(w, object{"type": "error", "error": messageError(e), "request_id": w.Header().Get("X-Request-Id")})
}

// thinkingBudget reads the field thinking of the Anthropic API: whether the model is to
// think, nil if it does not say, and for how many tokens.
func thinkingBudget(f *fields) (on *bool, budget int) {
	o := f.object("thinking")
	if o == nil {
		return nil, 0
	}
	t := o.str("type")
	if !slices.Contains([]string{"enabled", "adaptive", "disabled"}, t) {
		o.fail("type", "%q is unknown, expected enabled, adaptive or disabled", t)
	}
	if o.has("budget_tokens") {
		if budget = o.integer("budget_tokens", 0, 1, 1<<31-1); t != "enabled" {
			o.fail("budget_tokens", "needs the type enabled")
		}
	}
	f.adopt(o)
	yes := t != "disabled"
	return &yes, budget
}
