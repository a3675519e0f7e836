package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer/chat"
)

// chatRequest is a request for a chat completion.
type chatRequest struct {
	sharedFields
	doc       *document // nil: none is named
	logprobs  bool
	continues bool  // the last message
	named     bool  // a function is named that has to be called
	hidden    bool  // the client does not want to see the reasoning
	own       names // of fields, in a request of another form
	keepTurns int   // older ones are compressed; 0: none are
}

// messages reads the conversation. Content is a string or a list of text parts.
func messages(f *fields) []*chat.Object {
	if !f.has("messages") {
		f.fail("messages", "missing")
		return nil
	}
	list := f.objects("messages", maxMessages)
	if len(list) == 0 {
		f.fail("messages", "found an empty list, expected at least one message")
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
			m.fail("tool_calls", "found in a message with the role %s, expected only in those of the assistant", role)
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
		if len(kw) > maxEmbedded {
			f.fail("chat_template_kwargs", "found %d bytes, expected at most %d", len(kw), maxEmbedded)
		} else if err := json.Unmarshal(kw, in.Extra); err != nil {
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
	maxTokens := 0
	for _, key := range []string{"max_tokens", "max_completion_tokens"} {
		if f.has(key) {
			maxTokens = f.integer(key, 0, 1, math.MaxInt32)
		}
	}
	c := &chatRequest{sharedFields: s.sharedFields(f, v, maxTokens, "keep_turns"), logprobs: f.boolean("logprobs")}
	in := input(f)
	c.readContinue(f, in)
	o := &c.q.Sampling
	if o.LogProbs = c.logprobs; f.has("top_logprobs") {
		if o.TopLogProbs = f.integer("top_logprobs", 0, 0, maxTopLogProbs); !c.logprobs && o.TopLogProbs > 0 { // vLLM's clients send its default, 0
			f.fail("top_logprobs", "needs logprobs: true")
		}
	}
	refuseForeign(f, limitNames, "max_tokens", "max_completion_tokens")
	refuseForeign(f, stopNames, "stop")
	refuseForeign(f, append([]string{"thinking"}, thoughtNames...), "thinking_token_budget", "chat_template_kwargs")
	refuseForeign(f, []string{"enable_thinking"}, "chat_template_kwargs")
	refuse(f, "best_of", "1")
	refuse(f, "echo", "false")
	refuse(f, "prompt_logprobs")
	refuse(f, "modalities", `["text"]`)
	refuse(f, "functions")
	refuse(f, "function_call")
	c.follow(f, &in)
	c.hidden = f.has("include_reasoning") && !f.boolean("include_reasoning")
	budget := f.integer("thinking_token_budget", -1, 0, math.MaxInt32)
	if o := f.object("kv_compression"); o != nil && o.has("keep_turns") {
		c.keepTurns = o.integer("keep_turns", 0, 1, maxMessages)
		f.adopt(o)
	}
	if f.err != nil {
		return nil, f.err
	}
	if err := c.checkCompression(); err != nil {
		return nil, err
	}
	if c.doc, err = s.resolve(r, &c.sharedFields); err != nil {
		return nil, err
	}
	limit := v.e.MaxTokens()
	if counting {
		limit = maxCounted
	}
	if err := c.tokens(r, in, limit); err != nil {
		return nil, err
	}
	if !counting {
		if err := v.positions(len(c.q.Prompt), max(1, maxTokens)); err != nil {
			return nil, err
		}
	}
	if err := c.reasons(budget); err != nil {
		return nil, err
	}
	v.atLeast(&c.q, c.least)
	return c, nil
}

// readContinue reads continue_final_message.
func (c *chatRequest) readContinue(f *fields, in chat.Input) {
	if c.continues = f.boolean("continue_final_message"); !c.continues || len(in.Messages) == 0 {
		return
	}
	switch last, _ := in.Messages[len(in.Messages)-1].Get("role"); {
	case f.has("add_generation_prompt") && in.AddGenerationPrompt:
		f.fail("continue_final_message", "cannot be combined with add_generation_prompt")
	case last != "assistant":
		f.fail("continue_final_message", "the role of the last message is %q, expected assistant", last)
	}
}

// checkCompression reports a request for compression that has nothing to compress, or too
// much.
func (c *chatRequest) checkCompression() error {
	given := c.context != "" || c.document != ""
	switch {
	case c.keepTurns > 0 && (given || c.continues):
		return invalid("kv_compression.keep_turns", "kv_compression.keep_turns: cannot be combined with a context, a document or continue_final_message")
	case c.compressed() && !given && c.keepTurns == 0:
		return invalid("kv_compression", "kv_compression: nothing to compress, expected a context, a document or keep_turns")
	case c.continues && given:
		return invalid("continue_final_message", "continue_final_message: cannot be combined with a context or document")
	}
	return nil
}

// error returns an error for clients that names the fields of their request.
func (c *chatRequest) error(err error) *apiError {
	return c.own.rename(c.asError(err))
}

// follow makes answers follow the requested format, or call tools.
func (c *chatRequest) follow(f *fields, in *chat.Input) {
	like := format(f)
	c.q.Format, c.formatBy = like.Format, like.field
	choice := f.raw("tool_choice")
	c.q.Tools = tools(f, c.v, in)
	c.named = choice != nil && choice[0] == '{'
	if c.q.Tools != nil && (like.IsZero() || c.q.Tools.Required()) {
		c.formatBy = "tools"
	}
}

// reasons determines how the answers begin, once the prompt is known.
func (c *chatRequest) reasons(budget int) (err error) {
	if c.continues {
		return nil
	}
	c.q.Reasoning, err = c.v.syntax.Reasoning(c.q.Prompt, budget)
	if errors.Is(err, structured.ErrNoBudget) {
		return invalid("thinking_token_budget", "thinking_token_budget: not supported: %v", err)
	}
	return err
}

// tokens builds the prompt, of at most limit tokens.
func (c *chatRequest) tokens(r *http.Request, in chat.Input, limit int) error {
	var front []int32
	var n int
	var err error
	format := c.v.format
	switch {
	case c.continues:
		c.q.Continues = true
		if c.q.Prompt, err = format.ContinueTokens(r.Context(), in, limit); errors.Is(err, dialog.ErrNoText) {
			return invalid("messages", "%v", err)
		}
		return err
	case c.keepTurns > 0:
		c.q.Prompt, front, n, err = format.TurnsTokens(r.Context(), in, c.keepTurns, limit)
	case c.context == "":
		c.q.Prompt, err = format.Tokens(r.Context(), in, limit)
	default:
		if d := c.doc; d != nil {
			if d.System != system(in.Messages) {
				return invalid("messages", "messages: the document was processed after a different system message: %q", d.System)
			}
			format = format.At(d.date)
		}
		c.q.Prompt, front, n, err = format.SplitTokens(r.Context(), in, c.context, limit)
	}
	if err == nil && n > 0 {
		c.compress(&c.q, front, n)
	}
	return err
}

// system returns the text of the leading system message; empty without one.
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

func (d *chatDelta) empty() bool {
	return d.Role == "" && d.Reasoning == "" && d.Content == nil && d.Calls == nil
}

// newChatCall returns a call, or a piece of one.
func newChatCall(d structured.Call) chatCall {
	call := chatCall{ID: d.ID, Function: chatCallFunction{Name: d.Name, Arguments: d.Arguments}}
	if d.Name != "" {
		call.Type = "function"
	}
	return call
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

// events returns the events of an answer as this request wants to see them.
func (c *chatRequest) events(events iter.Seq2[engine.Event, error]) iter.Seq2[answerEvent, error] {
	return func(yield func(answerEvent, error) bool) {
		for e, err := range events {
			if err != nil {
				yield(answerEvent{}, err)
				return
			}
			x := newAnswerEvent(0, e)
			if c.hidden {
				x.reasoning = ""
			}
			if e.Finish == engine.FinishCalls && c.named { // calling what was named is not the model's decision
				x.finish = string(model.FinishStop)
			}
			if !yield(x, nil) {
				return
			}
		}
	}
}

type chatLogProbs struct {
	Content []chatLogProb `json:"content"`
	Refusal []chatLogProb `json:"refusal"`
}

// newChatLogProbs returns the log-probabilities of tokens; nil of none.
func newChatLogProbs(p []chatLogProb) *chatLogProbs {
	if p == nil {
		return nil
	}
	return &chatLogProbs{Content: p}
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

// logProbs describes the token of an event; nil if there is none, or nobody asked.
func (c *chatRequest) logProbs(e *answerEvent) []chatLogProb {
	if !c.logprobs || !e.hasToken {
		return nil
	}
	out := c.v.chatLogProb(e.token.ID, e.token.LogProb)
	out.Top = []chatLogProb{}
	for _, t := range e.token.Top {
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
	Timings *timings     `json:"timings,omitempty"`

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
	format := &chatFormat{c: c, begun: make([]bool, c.n), choices: make([]chatChoice, c.n), texts: make([]chatTexts, c.n)}
	format.answer = chatAnswer{ID: "chatcmpl-" + randomID(), Object: "chat.completion", Created: time.Now().Unix(), Model: c.v.id}
	if c.stream {
		format.answer.Object += ".chunk"
	}
	for i := range format.choices {
		format.choices[i].Message = &chatMessage{Role: "assistant"}
	}
	return s.answer(w, r, c.answering(c.stream, false), format)
}

// answering returns the request as one whose answer can be written.
func (c *chatRequest) answering(stream, collects bool) *answering {
	return &answering{
		sharedFields: &c.sharedFields, stream: stream, collects: collects, queries: []engine.Request{c.q}, error: c.error,
		events: func(_ int, events iter.Seq2[engine.Event, error]) iter.Seq2[answerEvent, error] {
			return c.events(events)
		},
	}
}

// chatFormat writes answers as chat completions.
type chatFormat struct {
	c      *chatRequest
	answer chatAnswer // whole, or the next chunk

	begun   []bool       // of a stream, by choice
	choices []chatChoice // of a whole answer
	texts   []chatTexts  // likewise
}

// chatTexts are the texts of a whole answer so far.
type chatTexts struct {
	reasoning, content strings.Builder
	arguments          []*strings.Builder // of calls
}

func (f *chatFormat) begin(*eventStream) {
	if f.c.ids {
		f.answer.PromptIDs = f.c.q.Prompt
	}
}

// add adds a piece to a whole answer, or sends it: the role first, then pieces of text and
// calls, then the reason why the choice ended.
func (f *chatFormat) add(out *eventStream, e *answerEvent) {
	if out == nil {
		f.collect(e)
		return
	}
	c, delta := f.c, &chatDelta{Reasoning: e.reasoning}
	if !f.begun[e.choice] {
		f.begun[e.choice] = true
		delta.Role = "assistant"
		if c.q.Tools == nil && c.q.Reasoning == nil {
			delta.Content = new(string)
		}
	}
	if e.text != "" {
		delta.Content = &e.text
	}
	for _, d := range e.calls {
		call := newChatCall(d)
		call.Index = &d.Index
		delta.Calls = append(delta.Calls, call)
	}
	choice := chatChoice{Index: e.choice, Delta: delta, Finish: orNull(e.finish)}
	if choice.LogProbs = newChatLogProbs(c.logProbs(e)); c.ids && e.hasToken {
		choice.IDs = []int32{e.token.ID}
	}
	if choice.LogProbs == nil && choice.IDs == nil && e.finish == "" && delta.empty() {
		return
	}
	f.answer.Choices = []chatChoice{choice}
	out.send(f.chunk())
	f.answer.PromptIDs = nil // only the first has them
}

// chunk returns the next chunk. Where the usage is asked for, those before the last have it
// as null.
func (f *chatFormat) chunk() any {
	if !f.c.usage {
		return f.answer
	}
	return struct {
		chatAnswer
		Usage *usage `json:"usage"`
	}{f.answer, f.answer.Usage}
}

// collect adds a piece to a whole answer.
func (f *chatFormat) collect(e *answerEvent) {
	texts, choice := &f.texts[e.choice], &f.choices[e.choice]
	texts.content.WriteString(e.text)
	texts.reasoning.WriteString(e.reasoning)
	choice.Index, choice.Finish = e.choice, orNull(e.finish)
	if f.c.ids && e.hasToken {
		choice.IDs = append(choice.IDs, e.token.ID)
	}
	for _, d := range e.calls {
		if d.Name != "" {
			choice.Message.Calls = append(choice.Message.Calls, newChatCall(d))
			texts.arguments = append(texts.arguments, &strings.Builder{})
		}
		texts.arguments[d.Index].WriteString(d.Arguments)
	}
	if p := f.c.logProbs(e); p != nil {
		if choice.LogProbs == nil {
			choice.LogProbs = &chatLogProbs{}
		}
		choice.LogProbs.Content = append(choice.LogProbs.Content, p...)
	}
}

func (f *chatFormat) progress(out *eventStream, _ int, p *promptProgress) {
	f.answer.Choices, f.answer.Progress = []chatChoice{{Delta: &chatDelta{}}}, p
	out.send(f.chunk())
	f.answer.Progress = nil
}

func (f *chatFormat) end(w http.ResponseWriter, out *eventStream, sum *outcome) error {
	f.answer.Usage, f.answer.Cache, f.answer.Timings = &sum.usage, sum.cache, newTimings(sum.tokens)
	if f.c.q.Reasoning != nil {
		f.answer.Usage.Answer = &answerUsage{Reasoning: sum.tokens.Reasoning}
	}
	if out != nil {
		if f.answer.Choices = []chatChoice{}; f.c.usage {
			out.send(f.answer)
		}
		out.done()
		return nil
	}
	for i := range f.choices {
		m := f.choices[i].Message
		m.Reasoning = f.texts[i].reasoning.String()
		for k, arguments := range f.texts[i].arguments {
			m.Calls[k].Function.Arguments = arguments.String()
		}
		if text := f.texts[i].content.String(); text != "" || len(m.Calls) == 0 && m.Reasoning == "" {
			m.Content = &text
		}
	}
	f.answer.Choices = []chatChoice{}
	return writeList(w, f.answer, "choices", f.choices)
}

func (f *chatFormat) fail(out *eventStream, e *apiError) { out.fail(e) }

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
