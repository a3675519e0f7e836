package serve

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/internal/grammar"
	"github.com/lukv/lukv/model"
)

const (
	maxSchema   = 256 << 10 // bytes of the format of an answer
	maxGrammars = 16        // kept for each model
	maxWords    = 4096      // to choose from
)

// grammars keeps the grammars compiled for a model.
type grammars struct {
	once  sync.Once
	vocab *grammar.Vocabulary

	mu     sync.Mutex
	byKey  map[[sha256.Size]byte]*grammar.Grammar
	recent [][sha256.Size]byte // least recently used first
}

// language is the format that an answer must have; the zero value allows anything.
type language struct {
	part  grammar.Part
	key   []byte // identifies the format; nil: anything
	field string // that asks for it

	// Alternatively, the answer begins with a control token and continues as first
	// says; nil: it cannot.
	firstToken int32
	first      *language
}

// grammar compiles a language, or finds it compiled.
func (v *served) grammar(ctx context.Context, l language) (*grammar.Grammar, error) {
	gs := &v.grammars
	gs.once.Do(func() {
		// Control tokens never match: they are not text.
		gs.vocab = grammar.NewVocabulary(v.m.Config().Vocab, func(id int32) []byte {
			if v.tok.IsSpecial(id) || v.m.Ends(id, &model.Sampling{}) {
				return nil
			}
			return v.tok.TokenBytes(id)
		})
		gs.byKey = map[[sha256.Size]byte]*grammar.Grammar{}
	})
	key := sha256.Sum256(l.key)
	find := func() *grammar.Grammar {
		i := slices.Index(gs.recent, key)
		if i < 0 {
			return nil
		}
		gs.recent = append(slices.Delete(gs.recent, i, i+1), key)
		return gs.byKey[key]
	}
	gs.mu.Lock()
	g := find()
	gs.mu.Unlock()
	if g != nil {
		return g, nil
	}
	g, err := grammar.Compile(ctx, gs.vocab, l.part) // unlocked: nobody waits for another's large one
	if err != nil {
		return nil, err
	}
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if other := find(); other != nil {
		return other, nil
	}
	if len(gs.recent) >= maxGrammars {
		delete(gs.byKey, gs.recent[0])
		gs.recent = gs.recent[1:]
	}
	gs.byKey[key], gs.recent = g, append(gs.recent, key)
	return g, nil
}

// unsupported are fields by which other servers take the format of an answer. Left out
// without a word, they would give answers of another format than was asked for.
var unsupported = []string{"grammar", "json_schema", "regex", "ebnf", "format", "bad_words", "allowed_token_ids", "structural_tag", "guided_grammar",
	"guided_decoding", "guided_whitespace_pattern", "json_mode", "json_object", "banned_tokens", "banned_strings", "bad_words_ids", "logits_processors", "logits_processor", "logit_processors",
	"sampling_params", "extra_body", "lark", "gbnf", "bnf", "constraint", "output_schema", "json_schema_str"}

// formats reads the formats that a request asks for.
type formats struct {
	f     *fields
	found []language
}

func (x *formats) add(field string, l language) {
	l.field = field
	if x.found = append(x.found, l); len(x.found) > 1 {
		x.f.fail(field, "found a second format of the answer, expected one of %s and %s", x.found[0].field, field)
	}
}

// format reads the format that an answer must have: response_format, or vLLM's
// structured_outputs or its older names.
func format(f *fields) language {
	x := &formats{f: f}
	x.response()
	x.structured()
	x.guided(f, "guided_", "guided_")
	for _, key := range unsupported {
		refuse(f, key)
	}
	if len(x.found) == 0 || f.err != nil {
		return language{}
	}
	if n := len(x.found[0].key); n > maxSchema {
		f.fail(x.found[0].field, "found %d bytes, expected at most %d", n, maxSchema)
		return language{}
	}
	return x.found[0]
}

// response reads response_format.
func (x *formats) response() {
	o := x.f.object("response_format")
	if o == nil {
		return
	}
	switch t := o.str("type"); t {
	case "text":
	case "json_object":
		if schema := o.raw("schema"); schema != nil { // as llama.cpp has it
			if schema[0] == '{' {
				o.values["schema"] = ofObjects(schema)
			}
			x.add("response_format", schemaLanguage(o, "schema", false))
		} else {
			x.add("response_format", anyObject())
		}
	case "json_schema":
		if of := o.object("json_schema"); of == nil {
			o.fail("json_schema", "missing")
		} else {
			x.add("response_format", schemaLanguage(of, "schema", of.boolean("strict")))
			x.f.adopt(of)
		}
	default:
		o.fail("type", "%q is not supported, expected text, json_object or json_schema", t)
	}
	x.f.adopt(o)
}

// structured reads structured_outputs.
func (x *formats) structured() {
	o := x.f.object("structured_outputs")
	if o == nil {
		return
	}
	before := len(x.found)
	for key := range o.values {
		switch key {
		case "json", "regex", "choice", "json_object", "disable_fallback":
		case "grammar", "structural_tag", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern":
			refuse(o, key, "false")
		default:
			o.fail(key, "unknown, expected json, regex, choice or json_object")
		}
	}
	if o.boolean("json_object") {
		x.add("structured_outputs.json_object", anyObject())
	}
	x.guided(o, "", "structured_outputs.")
	if len(x.found) == before && o.err == nil {
		x.f.fail("structured_outputs", "found no format, expected json, regex, choice or json_object")
	}
}

// guided reads the formats of o whose names begin with prefix; path is their name in the
// request without the rest.
func (x *formats) guided(o *fields, prefix, path string) {
	if o.has(prefix + "json") {
		x.add(path+"json", schemaLanguage(o, prefix+"json", false))
	}
	if o.has(prefix + "regex") {
		expr := o.str(prefix + "regex")
		x.add(path+"regex", language{part: grammar.Regexp(expr), key: []byte("regex " + expr)})
	}
	if o.has(prefix + "choice") {
		list := o.texts(prefix+"choice", maxWords)
		key, _ := json.Marshal(list)
		x.add(path+"choice", language{part: grammar.Texts(list...), key: append([]byte("choice "), key...)})
	}
	x.f.adopt(o)
}

// adopt takes over the error of a nested object unless f has one.
func (f *fields) adopt(o *fields) {
	if f.err == nil {
		f.err = o.err
	}
}

// anyObject is the language of any JSON object.
func anyObject() language {
	return language{part: grammar.Schema([]byte(`{"type":"object"}`), false), key: []byte("object")}
}

// schemaLanguage reads a schema: an object, or a string that holds one.
func schemaLanguage(f *fields, key string, strict bool) language {
	v := f.raw(key)
	switch {
	case v == nil:
		f.fail(key, "missing")
	case v[0] == '"':
		v = json.RawMessage(f.str(key))
		if err := embedded(string(v)); err != nil && len(v) <= maxSchema {
			f.fail(key, "the text in it: %v", err)
		}
	case v[0] != '{':
		f.fail(key, "found %s, expected an object", kind(v))
	}
	return language{part: grammar.Schema(v, strict), key: fmt.Appendf(nil, "schema %v %s", strict, v)}
}

// constraint says which tokens may come next in the answers to one request.
type constraint struct {
	size    int
	budget  *grammar.Budget
	ends    []int32 // tokens that end an answer
	choices []place

	// first, if not -1, is a token with which an answer may also begin; after is the
	// grammar of the rest.
	first int32
	after *grammar.Grammar
}

// place is how far an answer has been read.
type place struct {
	read  int // tokens
	g     *grammar.Grammar
	state *grammar.State
	calls callStart
}

// constrain makes the answers follow a language. calls, if not nil, says where it
// begins; until then, anything may come.
func (v *served) constrain(ctx context.Context, q *engine.Request, l language, calls *toolCalls) error {
	g, err := v.grammar(ctx, l)
	if err != nil {
		return err
	}
	c := &constraint{size: v.m.Config().Vocab, budget: grammar.NewBudget(q.Choices), choices: make([]place, q.Choices), first: -1}
	if l.first != nil {
		c.first = l.firstToken
		if c.after, err = v.grammar(ctx, *l.first); err != nil {
			return err
		}
	}
	for id := range int32(c.size) {
		if v.m.Ends(id, &q.Sampling) {
			c.ends = append(c.ends, id)
		}
	}
	if calls == nil {
		for i := range c.choices {
			c.choices[i].g, c.choices[i].state = g, g.Start()
		}
		q.Mask = c.mask
		return nil
	}
	for i := range c.choices {
		c.choices[i].g, c.choices[i].calls = g, callStart{t: calls, g: g, tok: v.tok}
	}
	q.Mask = c.maskCalls
	return nil
}

// atLeast keeps answers from ending before they have n tokens. A format that can only end
// still ends. Call it after the request's mask is set.
func (v *served) atLeast(q *engine.Request, n int) {
	if n == 0 {
		return
	}
	inner := q.Mask
	ends := make([]uint64, (v.m.Config().Vocab+63)/64)
	for id := range int32(v.m.Config().Vocab) {
		if v.m.Ends(id, &q.Sampling) {
			ends[id>>6] |= 1 << (id & 63)
		}
	}
	q.Mask = func(ctx context.Context, choice int, answer []int32) (mask []uint64, err error) {
		if inner != nil {
			mask, err = inner(ctx, choice, answer)
		}
		if err != nil || len(answer) >= n {
			return mask, err
		}
		out := make([]uint64, len(ends))
		for i := range out {
			out[i] = ^ends[i]
			if mask != nil {
				out[i] &= mask[i]
			}
		}
		return out, nil
	}
}

// mask is the engine.Request.Mask that allows what continues the answer so far.
func (c *constraint) mask(ctx context.Context, choice int, answer []int32) ([]uint64, error) {
	p := &c.choices[choice]
	for ; p.read < len(answer); p.read++ {
		if p.read == 0 && answer[0] == c.first {
			p.g, p.state = c.after, c.after.Start()
			continue
		}
		next, err := p.g.Token(ctx, c.budget, p.state, answer[p.read])
		if err != nil {
			return nil, err
		}
		if next == nil {
			return nil, fmt.Errorf("token %d came, which the format does not allow", answer[p.read])
		}
		p.state = next
	}
	mask, err := c.next(ctx, p.g, p.state)
	if len(answer) == 0 && c.first >= 0 && err == nil {
		mask = slices.Clone(mask)
		mask[c.first>>6] |= 1 << (c.first & 63)
	}
	return mask, err
}

var errNoToken = errors.New("follow the format of the answer: none of the model's tokens continues it")

// next returns the mask of a state, or io.EOF if the text can only end.
func (c *constraint) next(ctx context.Context, g *grammar.Grammar, s *grammar.State) ([]uint64, error) {
	mask, some, err := g.Mask(ctx, c.budget, s)
	switch {
	case err != nil:
		return nil, err
	case !some && s.MayEnd():
		return nil, io.EOF
	case !some:
		return nil, errNoToken
	case s.MayEnd():
		mask = slices.Clone(mask)
		for _, id := range c.ends {
			mask[id>>6] |= 1 << (id & 63)
		}
	}
	return mask, nil
}

// maskCalls is mask for answers in which calls may begin later.
func (c *constraint) maskCalls(ctx context.Context, choice int, answer []int32) ([]uint64, error) {
	p := &c.choices[choice]
	for ; p.read < len(answer) && p.state == nil; p.read++ {
		var err error
		if p.state, err = p.calls.token(ctx, c.budget, answer[p.read]); err != nil {
			return nil, err
		}
	}
	if p.state != nil {
		return c.mask(ctx, choice, answer)
	}
	if t := p.calls.t; t.must { // the answer begins with a token that is not text
		mask := make([]uint64, (c.size+63)/64)
		mask[t.first>>6] |= 1 << (t.first & 63)
		return mask, nil
	}
	return nil, nil
}
