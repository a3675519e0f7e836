package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"strings"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer/chat"
)

// chatRequest is a request for a chat completion.
type chatRequest struct {
	v        *served
	q        engine.Request
	document *document
	stream   bool
	usage    bool
	logprobs bool
	calls    *toolCalls // nil: nothing can be called
	ids      bool       // return_token_ids
	progress bool       // return_progress
	goesOn   bool       // continues the last message
	thinking *thinking  // nil: answers begin without thoughts
	thought  int        // tokens of thoughts so far
	own      names      // of fields, in a request of another form

	keepTurns int // older ones are compressed; 0: none are
}

// messages reads the conversation. Content is a string or a list of text parts.
func messages(f *fields) []*chat.Object {
	if !f.has("messages") {
		f.fail("messages", "missing")
		return nil
	}
	list := f.objects("messages", maxMessages)
	if len(list) == 0 {
		f.fail("messages", "there are none")
	}
	var out []*chat.Object
	for _, m := range list {
		out = append(out, message(m))
		f.adopt(m)
	}
	return out
}

func message(m *fields) *chat.Object {
	role := m.str("role")
	switch role {
	case "developer":
		role = "system"
	case "system", "user", "assistant", "tool":
	default:
		m.fail("role", "%q is unknown, expected system, developer, user, assistant or tool", role)
	}
	out := chat.NewMessage(role, content(m, role))
	for _, key := range []string{"name", "tool_call_id", "reasoning_content"} {
		if m.has(key) {
			out.Set(key, m.str(key))
		}
	}
	if calls := messageCalls(m); len(calls) > 0 {
		if role != "assistant" {
			m.fail("tool_calls", "a message of the %s calls nothing", role)
		}
		out.Set("tool_calls", calls)
	}
	return out
}

func content(m *fields, role string) string {
	if !m.has("content") && role != "assistant" {
		m.fail("content", "missing")
	}
	return m.text("content", "text")
}

// input reads the input of the template.
func input(f *fields) chat.Input {
	in := chat.Input{Messages: messages(f), AddGenerationPrompt: true}
	if f.has("add_generation_prompt") {
		in.AddGenerationPrompt = f.boolean("add_generation_prompt")
	}
	if kw := f.raw("chat_template_kwargs"); kw != nil {
		in.Extra = &chat.Object{}
		if err := json.Unmarshal(kw, in.Extra); err != nil {
			f.fail("chat_template_kwargs", "found %s, expected an object", kind(kw))
		}
		for _, own := range []string{"messages", "tools", "documents", "add_generation_prompt"} {
			if _, ok := in.Extra.Get(own); ok {
				f.fail("chat_template_kwargs", "%s has a field of its own", own)
			}
		}
	}
	refuse(f, "chat_template")
	return in
}

// chatRequest reads a chat completion; with counting, only the tokens of its prompt matter,
// which may be more than the model takes.
func (s *Server) chatRequest(r *http.Request, f *fields, counting bool) (*chatRequest, error) {
	v, err := s.model(f, true)
	if err != nil {
		return nil, err
	}
	c := &chatRequest{v: v, stream: f.boolean("stream"), logprobs: f.boolean("logprobs")}
	in := input(f)
	if c.goesOn = f.boolean("continue_final_message"); c.goesOn && len(in.Messages) > 0 {
		switch last, _ := in.Messages[len(in.Messages)-1].Get("role"); {
		case f.has("add_generation_prompt") && in.AddGenerationPrompt:
			f.fail("continue_final_message", "not together with add_generation_prompt")
		case last != "assistant":
			f.fail("continue_final_message", "the last message is not the assistant's")
		}
	}
	o := v.sampling(f)
	o.LogProbs = c.logprobs
	if f.has("top_logprobs") {
		if o.TopLogProbs = f.integer("top_logprobs", 0, 0, maxTopLogProbs); !c.logprobs && o.TopLogProbs > 0 { // vLLM's clients send its default, 0
			f.fail("top_logprobs", "needs logprobs: true")
		}
	}
	for _, key := range []string{"max_tokens", "max_completion_tokens"} {
		if f.has(key) {
			o.MaxTokens = f.integer(key, 0, 1, math.MaxInt32)
		}
	}
	if opts := f.object("stream_options"); opts != nil {
		if c.usage = opts.boolean("include_usage"); !c.stream {
			f.fail("stream_options", "needs stream: true")
		}
		f.adopt(opts)
	}
	refuse(f, "functions")
	refuse(f, "function_call")
	c.q = engine.Request{Sampling: o, Stop: stops(f), Choices: f.integer("n", 1, 1, maxChoices), Salt: f.str("cache_salt"), KeepStop: f.boolean("include_stop_str_in_output")}
	least := minTokens(f, o.MaxTokens)
	c.ids, c.progress = f.boolean("return_token_ids"), f.boolean("return_progress")
	if c.progress && !c.stream {
		f.fail("return_progress", "needs stream: true")
	}
	c.follow(f, &in)
	hidden, budget := f.has("include_reasoning") && !f.boolean("include_reasoning"), f.integer("thinking_token_budget", -1, 0, math.MaxInt32)
	policy, text, id := s.compression(f, v, "keep_turns"), f.str("context"), f.str("document")
	if o := f.object("kv_compression"); o != nil && o.has("keep_turns") {
		c.keepTurns = o.integer("keep_turns", 0, 1, maxMessages)
		f.adopt(o)
	}
	if f.err != nil {
		return nil, f.err
	}
	switch {
	case c.keepTurns > 0 && (id != "" || text != "" || c.goesOn):
		return nil, invalid("kv_compression.keep_turns", "not supported together with a context, a document or continue_final_message")
	case id != "" && text != "":
		return nil, invalid("document", "context and document are both given, expected one of them")
	case id != "":
		if c.document, err = s.docs.get(s.owner(r), id, v); err != nil {
			return nil, err
		}
		if err := c.document.samePolicy(policy); err != nil {
			return nil, err
		}
		policy, text = c.document.policy, c.document.text
		if c.q.Salt == "" {
			c.q.Salt = c.document.salt
		}
	case policy != nil && text == "" && c.keepTurns == 0:
		return nil, invalid("kv_compression", "there is nothing to compress: give a context, a document or keep_turns")
	case text != "" && policy == nil:
		policy = s.fitting(v, s.o.Compression)
	}
	limit := v.e.MaxTokens()
	if counting {
		limit = maxCounted
	}
	if err := c.tokens(r, in, policy, text, limit); err != nil {
		return nil, err
	}
	if !counting {
		if err := v.positions(len(c.q.Prompt), max(1, o.MaxTokens)); err != nil {
			return nil, err
		}
	}
	c.thinks(hidden, budget)
	v.atLeast(&c.q, least)
	return c, nil
}

// error returns an error for clients that names the fields of their request.
func (c *chatRequest) error(err error) *apiError {
	return c.own.rename(asError(err, c.v.e.MaxTokens()))
}

// follow constrains answers to the requested format, or to calls of tools.
func (c *chatRequest) follow(f *fields, in *chat.Input) {
	like, param := format(f), "response_format"
	var begin *toolCalls // says where the language begins; nil: with the answer
	if c.calls = tools(f, c.v, in); c.calls != nil {
		c.q.ShowSpecial = true
		auto := c.calls.choice == "auto"
		if auto && like.key != nil {
			like = c.calls.orFormat(c.v, like)
		} else { // if a call has to be made, the format of text does not matter
			like, param = c.calls.language(c.v), "tools"
			if auto || c.calls.must {
				begin = c.calls
			}
		}
	}
	if like.key == nil || f.err != nil {
		return
	}
	if err := c.v.constrain(&c.q, like, begin); err != nil {
		f.fail(param, "%v", err)
	}
}

// tokens builds the prompt, of at most limit tokens.
func (c *chatRequest) tokens(r *http.Request, in chat.Input, policy *lukv.Policy, text string, limit int) error {
	var err error
	switch {
	case c.goesOn && text != "":
		return invalid("continue_final_message", "continue_final_message: not supported together with a context or document")
	case c.goesOn:
		if c.q.Prompt, err = c.v.format.ContinueTokens(r.Context(), in, limit); errors.Is(err, dialog.ErrNoText) {
			return invalid("messages", "%v", err)
		}
	case c.keepTurns > 0:
		var front []int32
		var n int
		if c.q.Prompt, front, n, err = c.v.format.TurnsTokens(r.Context(), in, c.keepTurns, limit); n > 0 {
			c.q.Policy, c.q.Context, c.q.Protected = policy, n, dialog.Protected(c.v.m, policy, front, c.q.Prompt[:n])
		}
	case text == "":
		c.q.Prompt, err = c.v.format.Tokens(r.Context(), in, limit)
	default:
		format := c.v.format
		if d := c.document; d != nil {
			if d.System != system(in.Messages) {
				return invalid("messages", "the document was read behind another system message: %q", d.System)
			}
			format = format.At(d.date)
		}
		var front []int32
		var n int
		c.q.Prompt, front, n, err = format.SplitTokens(r.Context(), in, text, limit)
		if policy != nil {
			c.q.Policy, c.q.Context, c.q.Protected = policy, n, dialog.Protected(c.v.m, policy, front, c.q.Prompt[:n])
		}
	}
	return err
}

// system returns the text of the leading system message; empty if there is none.
func system(messages []*chat.Object) string {
	if len(messages) > 0 {
		if role, _ := messages[0].Get("role"); role == "system" {
			text, _ := messages[0].Get("content")
			return fmt.Sprint(text)
		}
	}
	return ""
}

// chatChoice is one answer, or a piece of one.
type chatChoice struct {
	Index    int           `json:"index"`
	Message  *chatMessage  `json:"message,omitempty"`
	Delta    *chatDelta    `json:"delta,omitempty"`
	LogProbs *chatLogProbs `json:"logprobs"`
	IDs      []int32       `json:"token_ids,omitzero"`
	Finish   any           `json:"finish_reason"`
}

// chatMessage is a whole answer. Clients require the refusal field; there never is one.
type chatMessage struct {
	Role      string     `json:"role"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	Content   *string    `json:"content"`
	Refusal   *string    `json:"refusal"`
	Calls     []chatCall `json:"tool_calls,omitempty"`
}

type chatDelta struct {
	Role      string     `json:"role,omitempty"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	Content   *string    `json:"content,omitempty"`
	Calls     []chatCall `json:"tool_calls,omitempty"`
}

// chatCall is a function call; in a stream, the first piece has index, id, type and
// name, the others index and arguments.
type chatCall struct {
	Index    *int             `json:"index,omitempty"`
	ID       string           `json:"id,omitempty"`
	Type     string           `json:"type,omitempty"`
	Function chatCallFunction `json:"function"`
}

type chatCallFunction struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// answerPart is a piece of an answer.
type answerPart struct {
	choice int
	think  string // precedes the text
	text   string
	calls  []callDelta
	probs  []chatLogProb
	ids    []int32
	before bool   // the token precedes the answer itself: it is part of the thoughts
	finish string // why the choice ends; empty: it goes on
}

// parts splits the events of an answer into thoughts, text and calls.
func (c *chatRequest) parts(events iter.Seq2[engine.Event, error]) iter.Seq2[answerPart, *apiError] {
	return func(yield func(answerPart, *apiError) bool) {
		readers := make([]callReader, c.q.Choices)
		thoughts := make([]*thoughtReader, c.q.Choices)
		for i := range thoughts {
			thoughts[i] = c.thinking.newReader()
		}
		for e, err := range events {
			if err != nil {
				yield(answerPart{}, c.error(err))
				return
			}
			p := answerPart{choice: e.Choice, text: e.Text, probs: c.logProbs(e), finish: string(e.Finish)}
			if c.ids && e.HasToken {
				p.ids = []int32{e.Token.ID}
			}
			if r := thoughts[e.Choice]; r != nil {
				before := r.tokens
				p.think, p.text = r.add(e.Text, e.HasToken, p.finish != "")
				c.thought += r.tokens - before
				p.before = r.stage != inAnswer
				if c.thinking.hidden {
					p.think = ""
				}
			}
			if c.calls != nil {
				r := &readers[e.Choice]
				r.t = c.calls
				p.text, p.calls = r.add(p.text, p.finish != "")
				// Calling a function that was named is not the model's decision, so the
				// reason stays stop; and nobody should execute a call that a stop text
				// cut.
				if p.finish == string(model.FinishStop) && r.calls > 0 && r.stage != inArguments && (c.calls.choice == "" || c.calls.choice == "auto") {
					p.finish = "tool_calls"
				}
			}
			if !yield(p, nil) {
				return
			}
		}
	}
}

type chatLogProbs struct {
	Content []chatLogProb `json:"content"`
	Refusal []chatLogProb `json:"refusal"`
}

type chatLogProb struct {
	Token   string        `json:"token"`
	LogProb float64       `json:"logprob"`
	Bytes   []int         `json:"bytes"`
	Top     []chatLogProb `json:"top_logprobs,omitzero"` // empty if none were asked for, nil for alternatives
}

func (v *served) chatLogProb(id int32, p float64) chatLogProb {
	text, raw := v.tokenText(id)
	out := chatLogProb{Token: text, LogProb: p, Bytes: make([]int, len(raw))}
	for i, b := range raw {
		out.Bytes[i] = int(b)
	}
	return out
}

// logProbs describes the token of an event.
func (c *chatRequest) logProbs(e engine.Event) []chatLogProb {
	if !c.logprobs || !e.HasToken {
		return nil
	}
	out := c.v.chatLogProb(e.Token.ID, e.Token.LogProb)
	out.Top = []chatLogProb{}
	for _, t := range e.Token.Top {
		out.Top = append(out.Top, c.v.chatLogProb(t.ID, t.LogProb))
	}
	return []chatLogProb{out}
}

// chatAnswer is the whole answer, or a chunk of it.
type chatAnswer struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   *usage       `json:"usage,omitempty"`
	Cache   *cacheUse    `json:"kv_cache,omitempty"`

	PromptIDs []int32         `json:"prompt_token_ids,omitempty"`
	Progress  *promptProgress `json:"prompt_progress,omitempty"`
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) error {
	f, err := body(r)
	if err != nil {
		return err
	}
	c, err := s.chatRequest(r, f, false)
	if err != nil {
		return err
	}
	stream, timer, end, err := s.begin(r, c)
	if err != nil {
		return err
	}
	defer end()
	answer := chatAnswer{ID: "chatcmpl-" + randomID(), Object: "chat.completion", Created: timer.start.Unix(), Model: c.v.id}
	if c.stream {
		answer.Object = "chat.completion.chunk"
		c.send(newEventStream(w), answer, stream, timer)
		return nil
	}
	var bad *apiError
	if answer.Choices, bad = c.collect(stream, timer); bad != nil {
		return bad
	}
	c.close(&answer, stream)
	if c.ids {
		answer.PromptIDs = c.q.Prompt
	}
	return writeJSON(w, answer)
}

// collect reads all choices.
func (c *chatRequest) collect(stream *engine.Stream, timer *timing) ([]chatChoice, *apiError) {
	texts, thoughts := make([]strings.Builder, c.q.Choices), make([]strings.Builder, c.q.Choices)
	choices := make([]chatChoice, c.q.Choices)
	calls := make([][]chatCall, c.q.Choices)
	for p, err := range c.parts(stream.Events()) {
		if err != nil {
			return nil, err
		}
		timer.event()
		texts[p.choice].WriteString(p.text)
		thoughts[p.choice].WriteString(p.think)
		choice := &choices[p.choice]
		choice.Index, choice.Finish = p.choice, orNull(p.finish)
		choice.IDs = append(choice.IDs, p.ids...)
		for _, d := range p.calls {
			list := &calls[p.choice]
			if d.name != "" {
				*list = append(*list, chatCall{ID: d.id, Type: "function", Function: chatCallFunction{Name: d.name}})
			}
			(*list)[d.index].Function.Arguments += d.arguments
		}
		if p.probs != nil {
			if choice.LogProbs == nil {
				choice.LogProbs = &chatLogProbs{}
			}
			choice.LogProbs.Content = append(choice.LogProbs.Content, p.probs...)
		}
	}
	for i := range choices {
		m := &chatMessage{Role: "assistant", Reasoning: thoughts[i].String(), Calls: calls[i]}
		if text := texts[i].String(); text != "" || len(m.Calls) == 0 && m.Reasoning == "" {
			m.Content = &text
		}
		choices[i].Message = m
	}
	return choices, nil
}

// close fills in what is known only at the end.
func (c *chatRequest) close(a *chatAnswer, stream *engine.Stream) {
	a.Usage = &usage{}
	a.Usage.add(stream.Usage())
	if c.thinking != nil {
		a.Usage.Answer = &answerUsage{Reasoning: c.thought}
	}
	if c.q.Policy != nil {
		id := ""
		if c.document != nil {
			id = c.document.ID
		}
		a.Cache = newCacheUse(stream.Cache(), id)
	}
}

// send streams the answer: the role first, then pieces of text and calls, then the
// reason why each choice ended.
func (c *chatRequest) send(out *eventStream, chunk chatAnswer, stream *engine.Stream, timer *timing) {
	begun := make([]bool, c.q.Choices)
	if c.progress {
		out.progress = func() {
			chunk.Choices, chunk.Progress = []chatChoice{{Delta: &chatDelta{}}}, newProgress(stream, len(c.q.Prompt), timer.start)
			out.send(chunk)
			chunk.Progress = nil
		}
	}
	if c.ids {
		chunk.PromptIDs = c.q.Prompt
	}
	for p, err := range c.parts(out.events(stream)) {
		if err != nil {
			out.fail(err)
			return
		}
		timer.event()
		delta := &chatDelta{}
		if !begun[p.choice] {
			begun[p.choice] = true
			delta.Role = "assistant"
			if c.calls == nil && c.thinking == nil {
				delta.Content = new(string)
			}
		}
		delta.Reasoning = p.think
		if p.text != "" {
			delta.Content = &p.text
		}
		for _, d := range p.calls {
			call := chatCall{Index: &d.index, ID: d.id, Function: chatCallFunction{Name: d.name, Arguments: d.arguments}}
			if d.name != "" {
				call.Type = "function"
			}
			delta.Calls = append(delta.Calls, call)
		}
		choice := chatChoice{Index: p.choice, Delta: delta, IDs: p.ids, Finish: orNull(p.finish)}
		if p.probs != nil {
			choice.LogProbs = &chatLogProbs{Content: p.probs}
		} else if p.think == "" && p.text == "" && p.calls == nil && p.finish == "" && delta.Role == "" && p.ids == nil {
			continue
		}
		chunk.Choices = []chatChoice{choice}
		out.send(chunk)
		chunk.PromptIDs = nil // only the first has them
	}
	if out.err != nil {
		return
	}
	if c.usage {
		chunk.Choices = []chatChoice{}
		c.close(&chunk, stream)
		out.send(chunk)
	}
	out.done()
}

// renderChat answers with the tokens of the prompt, for routers that track prefixes.
func (s *Server) renderChat(w http.ResponseWriter, r *http.Request) error {
	f, err := body(r)
	if err != nil {
		return err
	}
	c, err := s.chatRequest(r, f, false)
	if err != nil {
		return err
	}
	return writeJSON(w, map[string]any{"token_ids": c.q.Prompt})
}
