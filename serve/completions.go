package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
)

// textRequest is a request for a text completion, possibly of several prompts.
type textRequest struct {
	v        *served
	queries  []engine.Request
	n, best  int
	logprobs int // alternatives; -1: none
	echo     bool
	prompt   int  // alternatives of the prompt's tokens; -1: none
	ids      bool // return_token_ids
	progress bool // return_progress
	document string
	stream   bool
	usage    bool
}

// prompts reads the prompts: text or tokens, one or several. With special, texts begin with
// what the tokenizer puts before every text; behind a context, they may be empty.
func (v *served) prompts(r *http.Request, f *fields, special, behind bool) ([][]int32, error) {
	raw := f.raw("prompt")
	vocab, limit := v.m.Config().Vocab, v.e.MaxTokens()
	var list []json.RawMessage
	switch {
	case raw == nil:
		return nil, invalid("prompt", "prompt is missing")
	case raw[0] == '"':
		list = []json.RawMessage{raw}
	case raw[0] != '[':
		return nil, invalid("prompt", "prompt: found %s, expected text or tokens", kind(raw))
	case bytes.IndexByte([]byte(`"[]`), bytes.TrimLeft(raw[1:], " \t\r\n")[0]) < 0: // tokens
		list = []json.RawMessage{raw}
	default:
		list = f.list("prompt", maxPrompts)
	}
	if f.err != nil {
		return nil, f.err
	}
	if len(list) == 0 {
		return nil, invalid("prompt", "prompt: there is none")
	}
	var out [][]int32
	for _, p := range list {
		var tokens []int32
		if p[0] == '"' {
			var text string
			if err := json.Unmarshal(p, &text); err != nil {
				return nil, invalid("prompt", "prompt: %v", err)
			}
			var err error
			if tokens, err = v.tok.EncodeContext(r.Context(), text, limit, tokenizer.EncodeOptions{AddSpecial: special}); err != nil {
				return nil, aboutText(err, limit, "prompt")
			}
		} else {
			if tokens = f.tokens("prompt", p, vocab, limit); len(tokens) > limit {
				return nil, aboutText(fmt.Errorf("%w: a prompt of more than %d tokens", model.ErrContextFull, limit), limit, "prompt")
			}
		}
		if f.err != nil {
			return nil, f.err
		}
		if len(tokens) == 0 && !behind {
			return nil, invalid("prompt", "prompt: it is empty")
		}
		out = append(out, tokens)
	}
	return out, nil
}

// textRequest reads a text completion.
func (s *Server) textRequest(r *http.Request, f *fields) (*textRequest, error) {
	v, err := s.model(f, true)
	if err != nil {
		return nil, err
	}
	c := &textRequest{v: v, stream: f.boolean("stream"), echo: f.boolean("echo"), logprobs: f.integer("logprobs", -1, 0, maxTopLogProbs)}
	c.prompt = f.integer("prompt_logprobs", -1, 0, maxTopLogProbs)
	c.ids, c.progress = f.boolean("return_token_ids"), f.boolean("return_progress")
	switch {
	case c.stream && c.prompt >= 0:
		f.fail("prompt_logprobs", "not supported in a stream")
	case !c.stream && c.progress:
		f.fail("return_progress", "needs stream: true")
	}
	o := v.sampling(f)
	o.MaxTokens = f.integer("max_tokens", 16, 0, math.MaxInt32)
	if c.logprobs >= 0 {
		// The end of the text counts as a token; otherwise whoever adds up
		// probabilities would miss the last one.
		o.LogProbs, o.TopLogProbs, o.YieldEnd = true, c.logprobs, true
	}
	if c.prompt >= 0 {
		o.LogProbs, o.TopLogProbs = true, max(c.prompt, c.logprobs)
	}
	only := o.MaxTokens == 0
	if only && !c.echo {
		f.fail("max_tokens", "found 0, which needs echo: true")
	}
	c.n = f.integer("n", 1, 1, maxChoices)
	c.best = f.integer("best_of", c.n, 1, maxChoices)
	switch {
	case c.best < c.n:
		f.fail("best_of", "found %d, expected at least n, which is %d", c.best, c.n)
	case c.best > c.n && c.stream:
		f.fail("best_of", "cannot be more than n in a stream")
	case c.best > c.n:
		o.LogProbs, o.YieldEnd = true, true // the choice does not depend on who wants to see them
	}
	if opts := f.object("stream_options"); opts != nil {
		if c.usage = opts.boolean("include_usage"); !c.stream {
			f.fail("stream_options", "needs stream: true")
		}
		f.adopt(opts)
	}
	refuse(f, "suffix", `""`)
	policy, text := s.compression(f, v), f.str("context")
	q := engine.Request{Sampling: o, Stop: stops(f), Choices: c.best, Salt: f.str("cache_salt"), Echo: c.echo || c.prompt >= 0, PromptOnly: only,
		KeepStop: f.boolean("include_stop_str_in_output")}
	least := minTokens(f, o.MaxTokens)
	like := format(f)
	special := !f.has("add_special_tokens") || f.boolean("add_special_tokens")
	if f.err != nil {
		return nil, f.err
	}
	if id := f.str("document"); id != "" {
		if policy, text, err = s.inFront(r, v, &q, id, policy, text); err != nil {
			return nil, err
		}
		c.document = id
	}
	if policy != nil && text == "" {
		return nil, invalid("kv_compression", "there is nothing to compress: give a context or a document")
	}
	// Behind a context, prompts are not the beginning.
	prompts, err := v.prompts(r, f, special && text == "", text != "")
	if err != nil {
		return nil, err
	}
	var head []int32
	if text != "" {
		if policy == nil {
			policy = s.fitting(v, s.o.Compression)
		}
		if head, err = v.tok.EncodeContext(r.Context(), text, v.e.MaxTokens(), tokenizer.EncodeOptions{AddSpecial: special, SpecialAsText: true}); err != nil {
			return nil, aboutText(err, v.e.MaxTokens(), "context")
		}
	}
	for _, p := range prompts {
		q.Prompt = append(head[:len(head):len(head)], p...)
		if policy != nil && len(head) > 0 {
			q.Policy, q.Context = policy, len(head)
		}
		if err := v.positions(len(q.Prompt), o.MaxTokens); err != nil {
			return nil, err
		}
		if like.key != nil {
			if err := v.constrain(&q, like, nil); err != nil {
				return nil, invalid("response_format", "%v", err)
			}
		}
		own := q
		v.atLeast(&own, least)
		c.queries = append(c.queries, own)
	}
	return c, nil
}

// inFront returns the policy and the text of a document that precedes a prompt
// without a template.
func (s *Server) inFront(r *http.Request, v *served, q *engine.Request, id string, policy *lukv.Policy, text string) (*lukv.Policy, string, error) {
	if text != "" {
		return nil, "", invalid("document", "context and document are both given, expected one of them")
	}
	doc, err := s.docs.get(s.owner(r), id, v)
	switch {
	case err != nil:
		return nil, "", err
	case doc.System != "":
		return nil, "", invalid("document", "the document has a system message, and a text completion has none; ask about it in a chat")
	}
	if err := doc.samePolicy(policy); err != nil {
		return nil, "", err
	}
	if q.Salt == "" {
		q.Salt = doc.salt
	}
	if !doc.policy.Enabled() {
		return nil, doc.text, nil
	}
	return doc.policy, doc.text, nil
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

	sum   float64 // of the answer's log-probabilities
	count int
	at    *textPlace
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

// places returns the places of a prompt's choices.
func (c *textRequest) places() []*textPlace {
	out := make([]*textPlace, c.best)
	for i := range out {
		out[i] = &textPlace{dec: c.v.tok.NewDecoder(true)}
	}
	return out
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

	Progress *promptProgress `json:"prompt_progress,omitempty"`
}

// addTo adds an event to a choice. text is the text that it adds.
func (c *textRequest) addTo(choice *textChoice, e engine.Event, text string) {
	if e.HasToken && c.logprobs >= 0 {
		if choice.LogProbs == nil {
			choice.LogProbs = &textLogProbs{}
		}
		at := choice.at.chars
		if !e.Echo {
			at = choice.at.next(e.Token.ID)
		}
		c.describe(choice.LogProbs, e.Token, at)
	}
	if e.HasToken && !e.Echo {
		if c.ids && !c.v.m.Ends(e.Token.ID, &c.queries[0].Sampling) {
			choice.IDs = append(choice.IDs, e.Token.ID)
		}
		choice.sum += e.Token.LogProb
		choice.count++
	}
	choice.Text += text
	choice.Finish = orNull(string(e.Finish))
}

// describe appends a token. The token itself is always among the alternatives; of two
// that print alike, the more likely stays.
func (c *textRequest) describe(l *textLogProbs, t model.Token, at int) {
	text, _ := c.v.tokenText(t.ID)
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
	started := time.Now()
	limit := c.v.e.MaxTokens()
	answer := textAnswer{ID: "cmpl-" + randomID(), Object: "text_completion", Created: started.Unix(), Model: c.v.id, Choices: []textChoice{}}
	var streams []*engine.Stream
	var timers []*timing
	for _, q := range c.queries {
		stream, err := s.submit(contextOf(r), c.v, q)
		if err != nil {
			return asError(err, limit)
		}
		timer := c.v.metrics.begin(started)
		defer timer.end(stream)
		streams, timers = append(streams, stream), append(timers, timer)
	}
	if c.stream {
		c.send(newEventStream(w), answer, streams, timers)
		return nil
	}
	u := &usage{}
	var cache *cacheUse
	for k, stream := range streams {
		timer := timers[k]
		choices, places := make([]textChoice, c.best), c.places()
		for i := range choices {
			choices[i].at = places[i]
		}
		echo := c.newEcho(k)
		for e, err := range stream.Events() {
			if err != nil {
				return asError(err, limit)
			}
			if !e.Echo {
				timer.event()
				c.addTo(&choices[e.Choice], e, e.Text)
				continue
			}
			for i := range choices { // every choice begins with the prompt
				if c.prompt >= 0 {
					choices[i].Prompt = append(choices[i].Prompt, c.rank(e.Token))
				}
				if !c.echo {
					continue
				}
				c.addTo(&choices[i], e, "")
			}
			if echo.next(e.Token.ID); c.echo {
				for _, at := range places {
					at.chars = echo.chars
				}
			}
		}
		timer.end(stream)
		for i := range choices {
			if c.echo {
				choices[i].Text = echo.text + choices[i].Text
			}
			if choices[i].Finish == nil { // nothing was asked for
				choices[i].Finish = string(model.FinishLength)
			}
		}
		for i, choice := range bestOf(choices, c.n) {
			choice.Index = k*c.n + i
			if c.ids {
				choice.PromptIDs = c.queries[k].Prompt
			}
			answer.Choices = append(answer.Choices, choice)
		}
		u.add(stream.Usage())
		cache = c.addCache(cache, k, stream)
	}
	answer.Usage, answer.Cache = u, cache
	return writeJSON(w, answer)
}

// addCache adds the cache of prompt k, if it was compressed, to those of earlier ones.
func (c *textRequest) addCache(sum *cacheUse, k int, stream *engine.Stream) *cacheUse {
	if c.queries[k].Policy == nil {
		return sum
	}
	if sum == nil {
		return newCacheUse(stream.Cache(), c.document)
	}
	sum.add(stream.Cache())
	return sum
}

// echoText is the text of a prompt as its tokens pass.
type echoText struct {
	text  string // whole
	dec   *tokenizer.StreamDecoder
	left  int // tokens
	chars int // so far
}

// newEcho decodes prompt k after its compressed context, including special tokens.
func (c *textRequest) newEcho(k int) *echoText {
	q := c.queries[k]
	rest := q.Prompt[q.Context:]
	return &echoText{text: c.v.tok.Decode(rest, false), dec: c.v.tok.NewDecoder(false), left: len(rest)}
}

// next returns what the next token adds to the text; the last one includes what is
// left of a character that the prompt does not complete.
func (e *echoText) next(id int32) string {
	text := e.dec.Write(id)
	if e.left--; e.left == 0 {
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

// send streams the answers, one prompt after another.
func (c *textRequest) send(out *eventStream, chunk textAnswer, streams []*engine.Stream, timers []*timing) {
	u := &usage{}
	var cache *cacheUse
	for k, stream := range streams {
		timer := timers[k]
		places, echo := c.places(), c.newEcho(k)
		seen := make([]bool, c.best)
		if c.progress {
			out.progress = func() {
				chunk.Choices, chunk.Progress = []textChoice{{Index: k * c.n}}, newProgress(stream, len(c.queries[k].Prompt), timer.start)
				out.send(chunk)
				chunk.Progress = nil
			}
		}
		for e, err := range out.events(stream) {
			if err != nil {
				out.fail(asError(err, c.v.e.MaxTokens()))
				return
			}
			if !e.Echo {
				timer.event()
			}
			first, last := e.Choice, e.Choice
			text := e.Text
			if e.Echo {
				first, last, text = 0, c.best-1, echo.next(e.Token.ID)
			}
			for i := first; i <= last; i++ {
				choice := textChoice{Index: k*c.n + i, at: places[i]}
				c.addTo(&choice, e, text)
				if e.Echo {
					places[i].chars = echo.chars
				}
				if choice.Text == "" && choice.LogProbs == nil && choice.IDs == nil && choice.Finish == nil {
					continue
				}
				if c.ids && !seen[i] {
					seen[i], choice.PromptIDs = true, c.queries[k].Prompt
				}
				chunk.Choices = []textChoice{choice}
				out.send(chunk)
			}
		}
		if c.queries[k].PromptOnly {
			for i := range c.n {
				chunk.Choices = []textChoice{{Index: k*c.n + i, Finish: string(model.FinishLength)}}
				out.send(chunk)
			}
		}
		if out.err != nil {
			return
		}
		timer.end(stream)
		u.add(stream.Usage())
		cache = c.addCache(cache, k, stream)
	}
	if c.usage {
		chunk.Choices, chunk.Usage, chunk.Cache = []textChoice{}, u, cache
		out.send(chunk)
	}
	out.done()
}

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
		out = append(out, map[string]any{"token_ids": q.Prompt})
	}
	return writeJSON(w, out)
}

// noEmbeddings refuses: a decoder's hidden state is not an embedding.
func (s *Server) noEmbeddings(http.ResponseWriter, *http.Request) error {
	return &apiError{status: http.StatusNotImplemented, Type: "invalid_request_error", Message: "this server has no embeddings"}
}
