package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
)

// textRequest is a request for a text completion, possibly of several prompts.
type textRequest struct {
	sharedFields
	queries  []engine.Request
	best     int
	logprobs int // alternatives; -1: none
	echo     bool
	prompt   int // alternatives of the prompt's tokens; -1: none
	sent     []sentPrompt
}

// sentPrompt is a prompt as it was sent.
type sentPrompt struct {
	tokens []int32
	text   string
	ends   []int // of the tokens in text, if it is echoed; nil: it was sent as tokens
}

// prompts reads the texts or tokens of a field, one or several, at most most. With special, texts begin with
// the tokens that the tokenizer puts before every text; after a context, they may be empty.
func (c *textRequest) prompts(r *http.Request, f *fields, key string, most int, special, after bool) ([]sentPrompt, error) {
	v := c.v
	raw := f.raw(key)
	vocab, limit := v.m.Config().Vocab, v.e.MaxTokens()
	var list []json.RawMessage
	switch {
	case raw == nil:
		return nil, invalid(key, "%s is missing", key)
	case raw[0] == '"':
		list = []json.RawMessage{raw}
	case raw[0] != '[':
		return nil, invalid(key, "%s: found %s, expected text or tokens", key, kind(raw))
	case bytes.IndexByte([]byte(`"[]`), bytes.TrimLeft(raw[1:], " \t\r\n")[0]) < 0: // tokens
		list = []json.RawMessage{raw}
	default:
		list = f.list(key, most)
	}
	if f.err != nil {
		return nil, f.err
	}
	if len(list) == 0 {
		return nil, invalid(key, "%s: found an empty list, expected at least one prompt", key)
	}
	var out []sentPrompt
	for _, p := range list {
		var sent sentPrompt
		if p[0] == '"' {
			sent.text, _ = unquote(r.Context(), p)
			var err error
			o := tokenizer.EncodeOptions{AddSpecial: special}
			if sent.tokens, err = v.tok.EncodeContext(r.Context(), sent.text, limit, o); err == nil && c.echo {
				err = sent.locate(r.Context(), v.tok, o)
			}
			if err != nil {
				return nil, aboutText(err, limit, key)
			}
		} else {
			if sent.tokens = f.tokens(key, p, vocab, limit); len(sent.tokens) > limit {
				return nil, aboutText(fmt.Errorf("%w: a prompt of more than %d tokens", model.ErrContextFull, limit), limit, key)
			}
		}
		if f.err != nil {
			return nil, f.err
		}
		if len(sent.tokens) == 0 && !after {
			return nil, invalid(key, "%s: it is empty", key)
		}
		out = append(out, sent)
	}
	return out, nil
}

// locate finds where the tokens end in the text.
func (p *sentPrompt) locate(ctx context.Context, tok *tokenizer.Tokenizer, o tokenizer.EncodeOptions) error {
	_, spans, err := tok.EncodeOffsets(ctx, p.text, o)
	if err != nil || len(spans) == 0 {
		return err
	}
	p.ends = make([]int, len(spans))
	end := 0
	for i, s := range spans {
		if end = max(end, s.End); end < len(p.text) && !utf8.RuneStart(p.text[end]) { // within a character
			for end > 0 && !utf8.RuneStart(p.text[end]) {
				end--
			}
		}
		p.ends[i] = end
	}
	p.ends[len(p.ends)-1] = len(p.text)
	return nil
}

// textRequest reads a text completion.
func (s *Server) textRequest(r *http.Request, f *fields) (*textRequest, error) {
	v, err := s.model(f, true)
	if err != nil {
		return nil, err
	}
	c := &textRequest{sharedFields: s.sharedFields(f, v, f.integer("max_tokens", 16, 0, math.MaxInt32)), echo: f.boolean("echo")}
	c.readProbs(f)
	c.readBest(f)
	refuseForeign(f, limitNames, "max_tokens")
	refuseForeign(f, stopNames, "stop")
	refuse(f, "suffix", `""`)
	like := format(f)
	special := !f.has("add_special_tokens") || f.boolean("add_special_tokens")
	if f.err != nil {
		return nil, f.err
	}
	doc, err := s.resolve(r, &c.sharedFields)
	switch {
	case err != nil:
		return nil, err
	case doc != nil && doc.System != "":
		return nil, invalid("document", "document: it has a system message, and a text completion has none; ask about it in a chat")
	case c.compressed() && c.context == "":
		return nil, invalid("kv_compression", "kv_compression: nothing to compress, expected a context or a document")
	case doc != nil && !c.policy.Enabled():
		c.policy = nil
	}
	return c, c.build(r, f, special, like)
}

// build builds the prompts and the constraints on their answers.
func (c *textRequest) build(r *http.Request, f *fields, special bool, like wanted) error {
	v := c.v
	c.formatBy = like.field
	// After a context, prompts are not the beginning.
	var err error
	if c.sent, err = c.prompts(r, f, "prompt", maxPrompts, special && c.context == "", c.context != ""); err != nil {
		return err
	}
	var head []int32
	if c.context != "" {
		if head, err = v.tok.EncodeContext(r.Context(), c.context, v.e.MaxTokens(), tokenizer.EncodeOptions{AddSpecial: special, SpecialAsText: true}); err != nil {
			return aboutText(err, v.e.MaxTokens(), "context")
		}
	}
	for _, p := range c.sent {
		if f.charge(4 * int64(len(head))); f.err != nil { // every prompt has a copy
			return f.err
		}
		q := c.q
		q.Prompt = append(head[:len(head):len(head)], p.tokens...)
		if len(head) > 0 {
			c.compress(&q, nil, len(head))
		}
		if err := v.positions(len(q.Prompt), q.Sampling.MaxTokens); err != nil {
			return err
		}
		q.Format = like.Format
		v.atLeast(&q, c.least)
		c.queries = append(c.queries, q)
	}
	return nil
}

// readProbs reads which log-probabilities are wanted, of which tokens.
func (c *textRequest) readProbs(f *fields) {
	c.logprobs, c.prompt = f.integer("logprobs", -1, 0, maxTopLogProbs), f.integer("prompt_logprobs", -1, 0, maxTopLogProbs)
	o := &c.q.Sampling
	if c.logprobs >= 0 {
		// The end of the text counts as a token; otherwise whoever adds up
		// probabilities would miss the last one.
		o.LogProbs, o.TopLogProbs, o.YieldEnd = true, c.logprobs, true
	}
	if c.prompt >= 0 {
		if o.LogProbs, o.TopLogProbs = true, max(c.prompt, c.logprobs); c.stream {
			f.fail("prompt_logprobs", "not supported in a stream")
		}
	}
	c.q.Continues = true
	c.q.Echo, c.q.PromptOnly = c.echo || c.prompt >= 0, o.MaxTokens == 0
	if c.q.PromptOnly && !c.echo {
		f.fail("max_tokens", "found 0, which needs echo: true")
	}
}

// readBest reads how many answers the returned ones are chosen from.
func (c *textRequest) readBest(f *fields) {
	c.best = f.integer("best_of", c.n, 1, maxChoices)
	c.q.Choices = c.best
	switch {
	case c.best < c.n:
		f.fail("best_of", "found %d, expected at least n, which is %d", c.best, c.n)
	case c.best > c.n && c.stream:
		f.fail("best_of", "found %d in a stream, expected n, which is %d", c.best, c.n)
	case c.best > c.n:
		c.q.Sampling.LogProbs, c.q.Sampling.YieldEnd = true, true // the choice does not depend on who wants to see them
	}
}

// textChoice is one answer, or a piece of one.
type textChoice struct {
	Index    int           `json:"index"`
	Text     string        `json:"text"`
	LogProbs *textLogProbs `json:"logprobs"`
	Finish   any           `json:"finish_reason"`

	IDs       []int32            `json:"token_ids,omitzero"`
	PromptIDs []int32            `json:"prompt_token_ids,omitempty"`
	Prompt    []map[int32]ranked `json:"prompt_logprobs,omitempty"` // of each token; nil for the first

	text  []byte  // of a whole answer so far
	sum   float64 // of the answer's log-probabilities
	count int
}

// empty reports whether a piece of an answer says nothing.
func (c *textChoice) empty() bool {
	return c.Text == "" && c.LogProbs == nil && c.IDs == nil && c.Finish == nil
}

// textPlace is where the next token of a choice begins. What is held back, as it may become
// a stop text, counts like what was sent.
type textPlace struct {
	dec   *tokenizer.StreamDecoder // of the answer
	chars int
}

// next returns the place of the answer's next token.
func (p *textPlace) next(id int32) int {
	at := p.chars
	p.chars += utf8.RuneCountInString(p.dec.Write(id))
	return at
}

type textLogProbs struct {
	Tokens  []string             `json:"tokens"`
	Values  []*float64           `json:"token_logprobs"`
	Top     []map[string]float64 `json:"top_logprobs"`
	Offsets []int                `json:"text_offset"`
}

// ranked is a token of a prompt, or an alternative to it.
type ranked struct {
	LogProb float64 `json:"logprob"`
	Rank    *int    `json:"rank"` // 1 for the most likely; null beyond the alternatives
	Text    string  `json:"decoded_token"`
}

// rank lists a token of a prompt and the alternatives to it by id.
func (c *textRequest) rank(t model.Token) map[int32]ranked {
	if math.IsNaN(t.LogProb) { // the first
		return nil
	}
	text, _ := c.v.tokenText(t.ID)
	out := map[int32]ranked{t.ID: {LogProb: t.LogProb, Text: text}}
	for i, x := range t.Top[:min(len(t.Top), c.prompt)] {
		rank := i + 1
		text, _ := c.v.tokenText(x.ID)
		out[x.ID] = ranked{LogProb: x.LogProb, Rank: &rank, Text: text}
	}
	return out
}

type textAnswer struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []textChoice `json:"choices"`
	Usage   *usage       `json:"usage,omitempty"`
	Cache   *cacheUse    `json:"kv_cache,omitempty"`
	Timings *timings     `json:"timings,omitempty"`

	Progress *promptProgress `json:"prompt_progress,omitempty"`
}

// events puts the prompt, if it is echoed, in front of every choice.
func (c *textRequest) events(k int, events iter.Seq2[engine.Event, error]) iter.Seq2[answerEvent, error] {
	return func(yield func(answerEvent, error) bool) {
		places, echo := make([]textPlace, c.best), c.newEcho(k)
		for i := range places {
			places[i].dec = c.v.tok.NewDecoder(true)
			places[i].dec.Continue()
		}
		for e, err := range events {
			if err != nil {
				yield(answerEvent{}, err)
				return
			}
			x := newAnswerEvent(k, e)
			if !e.Echo {
				if e.HasToken && c.logprobs >= 0 {
					x.offset = places[e.Choice].next(e.Token.ID)
				}
				if !yield(x, nil) {
					return
				}
				continue
			}
			x.offset = echo.chars
			x.text = echo.next(e.Token.ID)
			x.listed = c.listed(e.Token.ID, x.text, echo.knowsText())
			for i := range places {
				if x.choice = i; !yield(x, nil) {
					return
				}
				if c.echo {
					places[i].chars = echo.chars
				}
			}
		}
		for i := 0; i < c.best && c.queries[k].PromptOnly; i++ {
			if !yield(answerEvent{prompt: k, choice: i, finish: string(model.FinishLength)}, nil) {
				return
			}
		}
	}
}

// listed returns the text of an echoed token, whose part of the echo is said. Where known,
// the echo is the text as it was sent, which has nothing for special tokens and for the blank
// before the first word that the tokenizer adds.
func (c *textRequest) listed(id int32, said string, known bool) string {
	text, _ := c.v.tokenText(id)
	if known && (said == "" && c.v.tok.IsSpecial(id) || strings.TrimPrefix(text, " ") == said) {
		return said
	}
	return text
}

// addTo adds an event to a choice.
func (c *textRequest) addTo(choice *textChoice, e *answerEvent) {
	if e.echo && c.prompt >= 0 {
		choice.Prompt = append(choice.Prompt, c.rank(e.token))
	}
	if e.echo && !c.echo {
		return
	}
	if e.hasToken && c.logprobs >= 0 {
		if choice.LogProbs == nil {
			choice.LogProbs = &textLogProbs{}
		}
		text := e.listed
		if !e.echo {
			text, _ = c.v.tokenText(e.token.ID)
		}
		c.describe(choice.LogProbs, e.token, text, e.offset)
	}
	if e.hasToken && !e.echo {
		if c.ids && !c.v.m.Ends(e.token.ID, &c.q.Sampling) {
			choice.IDs = append(choice.IDs, e.token.ID)
		}
		choice.sum += e.token.LogProb
		choice.count++
	}
	choice.Finish = orNull(e.finish)
}

// describe appends a token with its text. The token itself is always among the alternatives; of two
// that print alike, the more likely stays.
func (c *textRequest) describe(l *textLogProbs, t model.Token, text string, at int) {
	l.Tokens = append(l.Tokens, text)
	l.Offsets = append(l.Offsets, at)
	if math.IsNaN(t.LogProb) { // the first of the prompt
		l.Values, l.Top = append(l.Values, nil), append(l.Top, nil)
		return
	}
	p := t.LogProb
	l.Values = append(l.Values, &p)
	top := map[string]float64{text: p}
	for _, x := range t.Top[:min(len(t.Top), c.logprobs)] {
		text, _ := c.v.tokenText(x.ID)
		if old, ok := top[text]; !ok || x.LogProb > old {
			top[text] = x.LogProb
		}
	}
	l.Top = append(l.Top, top)
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) error {
	f, err := body(r)
	if err != nil {
		return err
	}
	c, err := s.textRequest(r, f)
	if err != nil {
		return err
	}
	if n, most := len(c.queries), c.v.e.MaxRequests(c.best); n > most {
		return invalid("prompt", "prompt: found %d prompts, expected at most %d, as many as this server lets wait and run at once", n, most)
	}
	a := &answering{
		sharedFields: &c.sharedFields, stream: c.stream, queries: c.queries, events: c.events,
		error: c.asError,
	}
	format := &textFormat{c: c, choices: make([]textChoice, len(c.queries)*c.best), begun: make([]bool, len(c.queries)*c.n)}
	format.answer = textAnswer{ID: "cmpl-" + randomID(), Object: "text_completion", Created: time.Now().Unix(), Model: c.v.id, Choices: []textChoice{}}
	return s.answer(w, r, a, format)
}

// textFormat writes answers as text completions.
type textFormat struct {
	c       *textRequest
	answer  textAnswer   // whole, or the next chunk
	choices []textChoice // of a whole answer, prompt by prompt
	begun   []bool       // of a stream, by index
}

func (f *textFormat) begin(*eventStream) {}

func (f *textFormat) add(out *eventStream, e *answerEvent) {
	if out == nil {
		choice := &f.choices[e.prompt*f.c.best+e.choice]
		if f.c.addTo(choice, e); !e.echo || f.c.echo {
			choice.text = append(choice.text, e.text...)
		}
		return
	}
	choice := textChoice{Index: e.prompt*f.c.n + e.choice, Text: e.text}
	if f.c.addTo(&choice, e); choice.empty() {
		return
	}
	if f.c.ids && !f.begun[choice.Index] {
		f.begun[choice.Index] = true
		choice.PromptIDs = f.c.queries[e.prompt].Prompt
	}
	f.answer.Choices = []textChoice{choice}
	out.send(f.chunk())
}

// chunk is that of a chat.
func (f *textFormat) chunk() any {
	if !f.c.usage {
		return f.answer
	}
	return struct {
		textAnswer
		Usage *usage `json:"usage"`
	}{f.answer, f.answer.Usage}
}

func (f *textFormat) progress(out *eventStream, k int, p *promptProgress) {
	f.answer.Choices, f.answer.Progress = []textChoice{{Index: k * f.c.n}}, p
	out.send(f.chunk())
	f.answer.Progress = nil
}

func (f *textFormat) end(w http.ResponseWriter, out *eventStream, sum *outcome) error {
	f.answer.Choices, f.answer.Usage, f.answer.Cache, f.answer.Timings = []textChoice{}, &sum.usage, sum.cache, newTimings(sum.tokens)
	if out != nil {
		if f.c.usage {
			out.send(f.answer)
		}
		out.done()
		return nil
	}
	var choices []textChoice
	for k := range f.c.queries {
		for _, choice := range bestOf(f.choices[k*f.c.best:(k+1)*f.c.best:(k+1)*f.c.best], f.c.n) {
			choice.Text, choice.Index = string(choice.text), len(choices)
			if f.c.ids {
				choice.PromptIDs = f.c.queries[k].Prompt
			}
			choices = append(choices, choice)
		}
	}
	return writeList(w, f.answer, "choices", choices)
}

func (f *textFormat) fail(out *eventStream, e *apiError) { out.fail(e) }

// echoText is the text of a prompt as its tokens pass: as it was sent, or else as the tokens
// say.
type echoText struct {
	sent  sentPrompt
	dec   *tokenizer.StreamDecoder
	left  int // tokens
	chars int // so far
}

// newEcho returns the text of prompt k, after its compressed context.
func (c *textRequest) newEcho(k int) *echoText {
	q := c.queries[k]
	return &echoText{sent: c.sent[k], dec: c.v.tok.NewDecoder(false), left: len(q.Prompt) - q.Context}
}

// knowsText reports whether the last token is one of those whose text was sent.
func (e *echoText) knowsText() bool { return len(e.sent.ends)-1-e.left >= 0 }

// next returns what the next token adds to the text; the last one includes what is
// left of a character that the prompt does not complete.
func (e *echoText) next(id int32) string {
	e.left--
	text := ""
	if i := len(e.sent.ends) - 1 - e.left; i >= 0 {
		begin := 0
		if i > 0 {
			begin = e.sent.ends[i-1]
		} else {
			text = e.dec.Flush() // of what precedes it
		}
		text += e.sent.text[begin:e.sent.ends[i]]
	} else if text = e.dec.Write(id); e.left == 0 {
		text += e.dec.Flush()
	}
	e.chars += utf8.RuneCountInString(text)
	return text
}

// bestOf returns the n choices with the largest mean log-probability, in their
// original order.
func bestOf(choices []textChoice, n int) []textChoice {
	for len(choices) > n {
		worst := 0
		for i := range choices {
			if choices[i].mean() < choices[worst].mean() {
				worst = i
			}
		}
		choices = append(choices[:worst], choices[worst+1:]...)
	}
	return choices
}

func (c *textChoice) mean() float64 { return c.sum / float64(max(1, c.count)) }

// renderText answers with the tokens of the prompts.
func (s *Server) renderText(w http.ResponseWriter, r *http.Request) error {
	f, err := body(r)
	if err != nil {
		return err
	}
	c, err := s.textRequest(r, f)
	if err != nil {
		return err
	}
	out := []map[string]any{}
	for _, q := range c.queries {
		if err := countAnswer(r, 8*len(q.Prompt)); err != nil {
			return err
		}
		out = append(out, map[string]any{"token_ids": q.Prompt})
	}
	return writeJSON(w, out)
}
