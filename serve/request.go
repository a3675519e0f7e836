package serve

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/internal/evidence"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/drafting"
)

// Limits on the counts in a request.
const (
	maxMessages    = 1 << 16
	maxParts       = 1 << 12 // of a message
	maxStops       = 16
	maxTopLogProbs = 20
	maxBias        = 1024
	maxChoices     = 128
	maxPrompts     = 128
)

// sharedFields are the fields that chat and text completions have in common.
type sharedFields struct {
	v        *served
	q        engine.Request // without a prompt
	n        int            // answers to return
	stream   bool
	usage    bool   // in the last chunk of a stream
	ids      bool   // return_token_ids
	progress bool   // return_progress
	least    int    // min_tokens
	formatBy string // the field that asks for the format of answers

	// The request for compression; see [Server.resolve].
	policy   *lukv.Policy
	context  string
	document string         // its id
	loss     *estimatedLoss // of the document, nil if it is not known

	// draft is the policy of exact answers: it compresses a copy that drafts, drafts tokens
	// at a time, 0 for as many as pay. policy is then nil or a document's that compresses nothing.
	draft  *lukv.Policy
	drafts int

	// ask is what the request wants to know about the loss of its context's compression,
	// which is settled before it is answered.
	ask lossRequest
}

// exactFields are the fields of kv_compression about exact answers.
var exactFields = []string{"exact", "draft_tokens"}

// readExact reads the fields about exact answers.
func (c *sharedFields) readExact(f *fields) {
	o := f.object("kv_compression")
	if o == nil {
		return
	}
	exact, tokens := o.boolean("exact"), o.integer("draft_tokens", 0, 1, drafting.MostDrafts)
	switch {
	case !exact && tokens > 0:
		o.fail("draft_tokens", "only exact answers are drafted")
	case exact && c.ask.asked():
		o.fail("exact", "cannot be combined with max_loss or measure_loss: nothing is lost")
	case exact && f.err == nil && !c.policy.Enabled():
		o.fail("exact", "nothing to draft with, expected a ratio or budget")
	case exact:
		c.draft, c.drafts, c.policy = c.policy, tokens, nil
	}
	f.adopt(o)
}

// compressed reports whether the request names a policy of its own.
func (c *sharedFields) compressed() bool { return c.policy != nil || c.draft != nil }

// compress makes the first n tokens of a prompt, those after front, subject to the policy.
func (c *sharedFields) compress(q *engine.Request, front []int32, n int) {
	if c.policy != nil {
		q.Policy, q.Context, q.Protected = c.policy, n, dialog.Protected(c.v.m, c.policy, front, q.Prompt[:n])
	}
	if c.draft != nil {
		q.Draft = &engine.Draft{Policy: c.draft, Tokens: c.drafts, Span: model.Span{From: dialog.Protected(c.v.m, c.draft, front, q.Prompt[:n]), To: n}}
	}
}

// sharedFields reads the fields that chat and text completions have in common; the answer
// has at most maxTokens tokens, 0 for no limit. further are names that kv_compression may
// have besides those of a policy.
func (s *Server) sharedFields(f *fields, v *served, maxTokens int, further ...string) sharedFields {
	c := sharedFields{
		v: v, stream: f.boolean("stream"), ids: f.boolean("return_token_ids"), progress: f.boolean("return_progress"), n: f.integer("n", 1, 1, maxChoices),
		policy: s.compression(f, v, slices.Concat(further, exactFields, lossFields)...), context: f.str("context"), document: f.str("document"),
	}
	if c.ask = lossRequestOf(f); c.ask.chooses && c.policy != nil {
		c.policy.Ratio = unchosenRatio
	}
	c.readExact(f)
	c.q = engine.Request{Sampling: v.sampling(f), Stop: stops(f), Choices: c.n, Salt: f.str("cache_salt"), KeepStop: f.boolean("include_stop_str_in_output")}
	c.q.Sampling.MaxTokens = maxTokens
	c.least = minTokens(f, maxTokens)
	if c.progress && !c.stream {
		f.fail("return_progress", "needs stream: true")
	}
	if o := f.object("stream_options"); o != nil {
		if c.usage = o.boolean("include_usage"); !c.stream {
			f.fail("stream_options", "needs stream: true")
		}
		f.adopt(o)
	}
	return c
}

// resolve finds the document that a request names, whose text, policy and salt then
// apply, or the policy of a context that has none. The document is nil if none is named.
func (s *Server) resolve(r *http.Request, c *sharedFields) (*document, error) {
	switch {
	case c.document != "" && c.context != "":
		return nil, invalid("document", "document: found a context as well, expected one of the two")
	case c.document == "" && c.context != "" && !c.compressed():
		c.policy = s.fitting(c.v, s.o.Compression)
	}
	if c.document == "" {
		return nil, nil
	}
	if c.ask.asked() {
		return nil, invalid("kv_compression", "kv_compression: max_loss and measure_loss belong to the upload of a document, found one that was uploaded")
	}
	doc, err := s.docs.get(s.owner(r), c.document, c.v)
	if err == nil {
		err = doc.samePolicy(c.policy)
	}
	if err != nil {
		return nil, err
	}
	if c.draft != nil && doc.policy.Enabled() {
		return nil, invalid("kv_compression.exact", "kv_compression.exact: the document is compressed, and exact answers need its full cache")
	}
	c.policy, c.context = doc.policy, doc.text
	if doc.Cache != nil {
		c.loss = doc.Cache.Loss
	}
	if c.q.Salt == "" {
		c.q.Salt = doc.salt
	}
	return doc, nil
}

// sampling reads the fields that say how tokens are drawn. Defaults are what the
// checkpoint recommends, or what the protocol says: temperature 1.
func (v *served) sampling(f *fields) model.Sampling {
	o := v.m.DefaultSampling()
	g := v.m.Config().Generation
	o.Temperature, o.TopK, o.TopP, o.MinP = g.Temperature, g.TopK, g.TopP, g.MinP
	o.Temperature = f.number("temperature", o.Temperature, 0, 2)
	if o.TopP = f.number("top_p", o.TopP, 0, 1); f.has("top_p") && o.TopP == 0 {
		f.fail("top_p", "found 0, expected more than 0 and at most 1; temperature 0 takes the most likely token")
	}
	o.TopK = max(0, f.integer("top_k", o.TopK, -1, 1<<30))
	o.MinP = f.number("min_p", o.MinP, 0, 1)
	o.PresencePenalty = f.number("presence_penalty", 0, -2, 2)
	o.FrequencyPenalty = f.number("frequency_penalty", 0, -2, 2)
	o.RepetitionPenalty = f.number("repetition_penalty", o.RepetitionPenalty, 0.01, 100)
	o.IgnoreEOS = f.boolean("ignore_eos")
	for _, raw := range f.list("stop_token_ids", maxStops) {
		if ids := f.tokens("stop_token_ids", json.RawMessage("["+string(raw)+"]"), v.m.Config().Vocab, 1); len(ids) == 1 {
			o.Stop = append(o.Stop, ids[0])
		}
	}
	if bias := f.object("logit_bias"); bias != nil {
		if len(bias.values) > maxBias {
			f.fail("logit_bias", "found %d tokens, expected at most %d", len(bias.values), maxBias)
		}
		o.LogitBias = map[int32]float64{}
		for id := range bias.values {
			n, err := strconv.Atoi(id)
			if err != nil || n < 0 || n >= v.m.Config().Vocab || strconv.Itoa(n) != id { // "5" and "05" would be two values for one token
				f.fail("logit_bias", "found %.20q, expected the id of a token of the model", id)
				continue
			}
			o.LogitBias[int32(n)] = bias.number(id, 0, -100, 100)
		}
		f.adopt(bias)
	}
	seed, given := f.seed("seed")
	if !given {
		var b [8]byte
		rand.Read(b[:])
		seed = binary.LittleEndian.Uint64(b[:])
	}
	o.Seed = seed
	return o
}

// asError returns an error for clients. One about the format of the answer names the field
// that asks for it.
func (c *sharedFields) asError(err error) *apiError {
	var format *structured.FormatError
	if errors.As(err, &format) && c.formatBy != "" {
		return invalid(c.formatBy, "%s: %v", c.formatBy, format.Err)
	}
	return asError(err, c.v.e.MaxTokens())
}

// minTokens reads the least number of tokens of an answer; most is the largest number, 0
// for no limit.
func minTokens(f *fields, most int) int {
	n := f.integer("min_tokens", 0, 0, math.MaxInt32)
	if most > 0 && n > most {
		f.fail("min_tokens", "found %d, expected at most %d, the limit of the answer", n, most)
	}
	return n
}

// stops reads the stop texts.
func stops(f *fields) []string {
	list := f.texts("stop", maxStops)
	for _, s := range list {
		if s == "" {
			f.fail("stop", "found an empty text")
		}
	}
	return list
}

// refuse reports a field that would change the answer and is not supported, unless its
// value is harmless.
func refuse(f *fields, key string, harmless ...string) {
	if alters(f, key, harmless...) {
		f.fail(key, "not supported by this server")
	}
}

// alters reports whether a field is there and its value is not harmless: numbers however they
// are written.
func alters(f *fields, key string, harmless ...string) bool {
	v := f.values[key]
	if v == nil || string(v) == "null" || string(v) == "[]" || string(v) == "{}" {
		return false
	}
	n, err := strconv.ParseFloat(string(v), 64)
	for _, h := range harmless {
		if x, wrong := strconv.ParseFloat(h, 64); string(v) == h || err == nil && wrong == nil && n == x {
			return false
		}
	}
	return true
}

// compression reads kv_compression: a policy whose profile may name one of the server's,
// and whose metric and allocator may be bare names. others are further fields that it may
// have here.
func (s *Server) compression(f *fields, v *served, others ...string) *lukv.Policy {
	o := f.object("kv_compression")
	if o == nil {
		return nil
	}
	if n := len(f.raw("kv_compression")); n > maxEmbedded {
		f.fail("kv_compression", "found %d bytes, expected at most %d", n, maxEmbedded)
		return nil
	}
	var profile *lukv.Profile
	if id := o.str("profile"); id != "" {
		known := s.profiles.Load()
		if profile = known.byName[id]; profile == nil {
			o.fail("profile", "%q is unknown, expected %s", id, cmp.Or(strings.Join(known.names(), ", "), "none: the server was started without --profile"))
		}
	}
	for _, elsewhere := range append(slices.Clone(exactFields), "keep_turns") {
		if o.has(elsewhere) && !slices.Contains(others, elsewhere) {
			o.fail(elsewhere, "not a field of this endpoint")
		}
	}
	for _, own := range append(others, "profile") {
		delete(o.values, own)
	}
	for _, key := range []string{"metric", "allocator"} {
		if v := o.raw(key); v != nil && v[0] == '"' {
			o.values[key] = json.RawMessage(`{"name":` + string(v) + `}`)
		}
	}
	notZero(o, "budget_tokens", "budget_bytes")
	if decode := o.object("decode"); decode != nil {
		notZero(decode, "target_size", "interval", "buffer") // a buffer of -1 is none
		o.adopt(decode)
	}
	if wrong := exactKeys(f.ctx, f.raw("kv_compression")); wrong != "" {
		o.fail(wrong, "unknown: all keys are written in lower case")
	}
	if o.err != nil {
		f.err = o.err
		return nil
	}
	data, err := json.Marshal(o.values)
	if err != nil {
		f.fail("kv_compression", "%v", err)
		return nil
	}
	p, err := lukv.ParsePolicy(data)
	if err != nil {
		f.fail("kv_compression", "%v", err)
		return nil
	}
	p.Profile = profile
	if profile != nil && !p.UsesProfile() {
		f.fail("kv_compression.profile", "found a profile, but neither the metric nor the allocator reads one")
		return nil
	}
	return s.fitting(v, p)
}

// notZero refuses numbers of 0 that a policy would take for absent ones.
func notZero(o *fields, keys ...string) {
	for _, key := range keys {
		if string(o.raw(key)) == "0" {
			o.fail(key, "found 0, expected another number; leave it out for the default")
		}
	}
}

// fitting returns a policy with the profile that its allocator or the metric learned
// needs, if none is named and the server has one that was made for the model and the
// metric, and with the profile's digest, so that policies with different profiles differ.
func (s *Server) fitting(v *served, p *lukv.Policy) *lukv.Policy {
	if p == nil {
		return nil
	}
	learned, fitted := p.Learned()
	if !p.Allocator.NeedsProfile() && !fitted && (p.Profile == nil || !p.UsesProfile()) {
		return p
	}
	with := *p
	with.Metric, _ = p.Methods()
	of := with.Metric
	if fitted && !p.Allocator.NeedsProfile() {
		of = learned
	}
	metric, err := lukv.NewMetric(of)
	if err != nil {
		return p // the engine refuses it
	}
	known := s.profiles.Load()
	for _, name := range known.names() {
		profile := known.byName[name]
		fits := profile.Identity.Model == v.m.ID() && profile.Identity.Metric.String() == lukv.MetricConfigOf(metric).String()
		if profile == p.Profile || p.Profile == nil && fits {
			with.Profile, with.ProfileDigest = profile, known.digests[name]
			return &with
		}
	}
	return p
}

// usage is the protocol's count of tokens.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    struct {
		Cached  int `json:"cached_tokens"`
		Evicted int `json:"evicted_tokens"` // see engine.Usage
	} `json:"prompt_tokens_details"`
	Answer *answerUsage `json:"completion_tokens_details,omitempty"` // of models that think
}

type answerUsage struct {
	Reasoning int `json:"reasoning_tokens"`
}

func (u *usage) add(x engine.Usage) {
	u.Prompt += x.Prompt
	u.Completion += x.Generated
	u.Total = u.Prompt + u.Completion
	u.Details.Cached += x.Cached
	u.Details.Evicted += x.Evicted
}

// timings say how long a request took, under llama.cpp's names. Prompts are counted without
// the tokens found in the prefix cache, and the time in the queue is left out.
type timings struct {
	Cached       int     `json:"cache_n"`
	Prompt       int     `json:"prompt_n"`
	PromptTime   float64 `json:"prompt_ms"`
	PromptRate   float64 `json:"prompt_per_second"`
	Answer       int     `json:"predicted_n"`
	AnswerTime   float64 `json:"predicted_ms"`
	AnswerRate   float64 `json:"predicted_per_second"`
	QueuedMillis float64 `json:"queued_ms"`

	Drafted  int `json:"draft_n,omitempty"` // tokens computed ahead
	Accepted int `json:"draft_n_accepted,omitempty"`
}

// newTimings returns the timings of requests whose usage is summed up in u.
func newTimings(u engine.Usage) *timings {
	rate := func(n int, d time.Duration) float64 {
		if d <= 0 {
			return 0
		}
		return float64(n) / d.Seconds()
	}
	millis := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return &timings{
		Cached: u.Cached, Prompt: u.Prompt - u.Cached, PromptTime: millis(u.Prefill), PromptRate: rate(u.Prompt-u.Cached, u.Prefill),
		Answer: u.Generated, AnswerTime: millis(u.Decoding), AnswerRate: rate(u.Generated, u.Decoding), QueuedMillis: millis(u.Queued),
		Drafted: u.Drafted, Accepted: u.Accepted,
	}
}

// cacheUse counts the entries in the caches of a request's prompts.
type cacheUse struct {
	Entries     int64   `json:"entries"`
	FullEntries int64   `json:"full_entries"`
	Bytes       int64   `json:"bytes"`
	FullBytes   int64   `json:"full_bytes"`
	Ratio       float64 `json:"ratio"`
	Document    string  `json:"document,omitempty"`

	Loss *estimatedLoss `json:"estimated_loss,omitempty"` // of the document

	// Evidence is what the policy lost where it was measured, or that it was not.
	Evidence string `json:"evidence,omitempty"`
}

func newCacheUse(c engine.CacheUse, p *lukv.Policy, document string) *cacheUse {
	out := &cacheUse{Document: document}
	out.add(c, p)
	return out
}

// add adds the cache of another prompt under the same policy; the ratio is that of the sums.
func (u *cacheUse) add(c engine.CacheUse, p *lukv.Policy) {
	u.Entries += c.Entries
	u.FullEntries += c.FullEntries
	u.Bytes += c.Bytes
	u.FullBytes += c.FullBytes
	if u.FullEntries > 0 {
		u.Ratio = 1 - float64(u.Entries)/float64(u.FullEntries)
	}
	u.Evidence = evidence.Of(p, evidenceRatio(p, u.Ratio))
}

// evidenceRatio is the ratio of which a policy's evidence is named: its own or, if it has a budget
// instead, what it came to.
func evidenceRatio(p *lukv.Policy, achieved float64) float64 {
	if p.Enabled() && achieved > 0 && p.Ratio > 0 {
		return p.Ratio
	}
	return achieved
}

// tokenText returns a token as text, and its bytes, which are needed if the token is
// part of a character.
func (v *served) tokenText(id int32) (string, []byte) {
	b := v.tok.TokenBytes(id)
	return strings.ToValidUTF8(string(b), "\uFFFD"), b
}

// positions returns an error if a prompt and an answer together do not fit the model.
func (v *served) positions(prompt, answer int) error {
	limit := v.e.MaxTokens()
	if prompt <= limit && answer <= limit-prompt {
		return nil
	}
	e := invalid("max_tokens", "This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the prompt, %d in the answer)",
		limit, int64(prompt)+int64(answer), prompt, answer)
	e.Code = "context_length_exceeded"
	return e
}

// salted gives a request its name and its client and, if keys are set, a salt of the
// client's own: hits, and their timing, must not tell one customer what another asked, nor
// the owner of a new key what that of the key before it did.
func (s *Server) salted(r requestContext, q engine.Request) engine.Request {
	q.ID, q.Client = r.id, r.key
	if len(*s.keys.Load()) > 0 {
		q.Client = s.ownerOf(r.key) // as turns call it
		q.Salt = fmt.Sprintf("%s\x00%s", r.key, q.Salt)
	}
	return q
}

// submit submits a request to the model's engine.
func (s *Server) submit(r requestContext, v *served, q engine.Request) (*engine.Stream, error) {
	q = s.salted(r, q)
	stream, err := v.e.Submit(r.ctx, q)
	holdsOf(r.ctx).turn.Give()
	var large *engine.TooLargeError
	var format *structured.FormatError
	switch {
	case err == nil:
		h := holdsOf(r.ctx)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.streams = append(h.streams, stream)
		return stream, nil
	case errors.As(err, &large), errors.Is(err, engine.ErrQueueFull), errors.Is(err, engine.ErrClosed),
		errors.Is(err, model.ErrContextFull), errors.As(err, &format), r.ctx.Err() != nil:
		return nil, err
	}
	// Nothing has been computed yet, so the request is wrong, such as a policy that does
	// not fit the model.
	param := ""
	if q.Policy != nil || q.Draft != nil {
		param = "kv_compression"
	}
	return nil, invalid(param, "%v", err)
}
