package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Other forms of the chat endpoint: a request is read into the fields of a chat
// completion, and the parts of the answer become blocks: reasoning, texts and calls.

// passed are fields that mean the same in every form, constraints among them.
var passed = append([]string{
	"model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
	"logit_bias", "ignore_eos", "stop_token_ids", "cache_salt", "kv_compression", "document", "context", "chat_template_kwargs",
	"parallel_tool_calls", "include_reasoning", "thinking_token_budget",
}, constraints...)

// constraints are vLLM's fields for the format and the end of an answer, which ollama's API
// takes, too.
var constraints = []string{"structured_outputs", "guided_json", "guided_regex", "guided_choice", "min_tokens", "include_stop_str_in_output"}

// object is a JSON object to be written.
type object = map[string]any

// asChat reads a request of another form as a chat completion, from the fields that are
// passed on and others, whose names in the request are own; counting is that of chatRequest.
func (s *Server) asChat(r *http.Request, f *fields, others object, own names, counting bool) (*chatRequest, error) {
	if f.err != nil {
		return nil, f.err
	}
	out := newFields(f.ctx, "")
	out.values = chatFields(f, passed)
	for k, v := range others {
		data, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
		out.values[k] = data
	}
	c, err := s.chatRequest(r, out, counting)
	if err != nil {
		return nil, own.rename(asError(err, holdsOf(r.Context()).maxLen))
	}
	c.own = own
	return c, nil
}

// chatFields returns the fields of a request of another form that a chat has as well: those
// with the given names, and those that it refuses.
func chatFields(f *fields, names []string) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for _, k := range names {
		if v := f.raw(k); v != nil {
			out[k] = v
		}
	}
	for k, v := range f.values {
		if _, alters := altering[k]; alters || slices.Contains(unsupported, k) {
			out[k] = v
		}
	}
	return out
}

// refuseOfChat refuses fields of a chat that another form does not have and that would change
// the answer; format is its own field for the format.
func refuseOfChat(f *fields, format string) {
	if f.has("response_format") {
		f.fail("response_format", "not a field of this endpoint, expected %s", format)
	}
	refuse(f, "n", "1")
}

// names are the names, in a request of another form, of fields of a chat or what precedes
// them: errors use the client's own names.
type names map[string]string

// of returns the name of a field, given that in a chat.
func (n names) of(field string) string {
	for end := len(field); end > 0; end = strings.LastIndexAny(field[:end], ".[") {
		if own, ok := n[field[:end]]; ok {
			return own + field[end:]
		}
	}
	return field
}

// rename returns an error of a chat as one of the request.
func (n names) rename(e *apiError) *apiError {
	out := *e
	out.Param = n.of(e.Param)
	if rest, ok := strings.CutPrefix(e.Message, e.Param+": "); ok {
		out.Message = out.Param + ": " + rest
	}
	return &out
}

// objects returns the elements of a list, which must be objects.
func (f *fields) objects(key string, n int) []*fields {
	var out []*fields
	for i, raw := range f.list(key, n) {
		at := fmt.Sprintf("%s[%d]", key, i)
		if raw[0] != '{' {
			f.fail(at, "found %s, expected an object", kind(raw))
			return nil
		}
		out = append(out, parseObject(f.ctx, raw, f.name(at)))
	}
	return out
}

// required reads a string that must be there.
func (f *fields) required(key string) string {
	if !f.has(key) {
		f.fail(key, "missing")
	}
	return f.str(key)
}

// text reads a string, or the texts of a list of parts of the given types.
func (f *fields) text(key string, types ...string) string {
	v := f.raw(key)
	if v == nil || v[0] == '"' {
		return f.str(key)
	}
	if v[0] != '[' {
		f.fail(key, "found %s, expected a string or a list of parts", kind(v))
		return ""
	}
	var b strings.Builder
	for _, p := range f.objects(key, maxParts) {
		if t := p.str("type"); !slices.Contains(types, t) {
			p.fail("type", "%q is not supported, expected %s", t, strings.Join(types, " or "))
		}
		b.WriteString(p.required("text"))
		f.adopt(p)
	}
	return b.String()
}

// block is a piece of an answer of one kind: reasoning, text, or a call with its
// arguments.
type block struct {
	n    int
	kind blockKind
	id   string // of a call
	name string
	text strings.Builder

	probs []chatLogProb // of a text's tokens, if they were asked for
}

type blockKind int

const (
	textBlock blockKind = iota
	reasoningBlock
	callBlock
)

// blocks puts the events of an answer together and calls begun, more and ended where they
// are set.
type blocks struct {
	c      *chatRequest
	list   []*block
	probs  []chatLogProb // of tokens whose text is still to come
	finish string
	begun  func(*block)
	more   func(*block, string, []chatLogProb)
	ended  func(*block)
}

// in returns the block that a text of a kind belongs to.
func (b *blocks) in(kind blockKind) *block {
	if n := len(b.list); n > 0 && b.list[n-1].kind == kind {
		return b.list[n-1]
	}
	return b.start(block{kind: kind})
}

func (b *blocks) start(n block) *block {
	b.end()
	n.n = len(b.list)
	b.list = append(b.list, &n)
	if b.begun != nil {
		b.begun(&n)
	}
	return &n
}

// end ends the last block.
func (b *blocks) end() {
	if len(b.list) > 0 && b.ended != nil {
		b.ended(b.list[len(b.list)-1])
	}
}

func (b *blocks) write(to *block, text string, probs []chatLogProb) {
	to.text.WriteString(text)
	to.probs = append(to.probs, probs...)
	if b.more != nil {
		b.more(to, text, probs)
	}
}

// add adds an event of the only choice.
func (b *blocks) add(e *answerEvent) {
	if e.reasoning != "" {
		b.write(b.in(reasoningBlock), e.reasoning, nil)
	}
	if !e.inReasoning {
		b.probs = append(b.probs, b.c.logProbs(e)...)
	}
	if e.text != "" {
		b.write(b.in(textBlock), e.text, b.probs)
		b.probs = nil
	}
	for _, d := range e.calls {
		if d.Name != "" {
			b.start(block{kind: callBlock, id: d.ID, name: d.Name})
			b.probs = nil
		}
		if d.Arguments != "" {
			b.write(b.list[len(b.list)-1], d.Arguments, nil)
		}
	}
	b.finish = e.finish
}

// close ends the answer. An empty one is an empty text.
func (b *blocks) close() {
	if len(b.list) == 0 {
		b.start(block{})
	}
	b.end()
}
