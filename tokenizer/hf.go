package tokenizer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/text/unicode/norm"
)

// hfFile is tokenizer.json. Its parts have a type, which decides on the fields.
type hfFile struct {
	addedTokens   []byte
	normalizer    *hfPart
	preTokenizer  *hfPart
	postProcessor *hfPart
	decoder       *hfPart
	model         hfModel
}

// parse reads the file; what is large stays JSON text.
func (f *hfFile) parse(data []byte) error {
	parts := map[string]**hfPart{
		"normalizer": &f.normalizer, "pre_tokenizer": &f.preTokenizer,
		"post_processor": &f.postProcessor, "decoder": &f.decoder,
	}
	c := jsonCursor{b: data}
	return c.end(c.members(func(name string) error {
		if name == "model" {
			// In passing, without finding its end first. Whatever is wrong with it
			// is found again and named below.
			at, m := c.i, f.model
			if m.read(&c) == nil {
				f.model = m
				return nil
			}
			c.i = at
		}
		value, err := c.value()
		if err != nil {
			return err
		}
		into, ok := parts[name]
		switch {
		case name == "added_tokens":
			f.addedTokens = value
		case name == "model" && !isNull(value):
			if err := f.model.parse(value); err != nil {
				return fmt.Errorf("model: %w", err)
			}
		case ok:
			if err := unmarshalPart(value, into); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	}))
}

// hfPart has the fields of all normalizers, pre-tokenizers, post-processors and
// decoders.
type hfPart struct {
	Type string `json:"type"`

	Normalizers   []hfPart `json:"normalizers"`
	PreTokenizers []hfPart `json:"pretokenizers"`
	Processors    []hfPart `json:"processors"`
	Decoders      []hfPart `json:"decoders"`

	Prepend          string     `json:"prepend"`
	Pattern          *hfPattern `json:"pattern"`
	Content          string     `json:"content"`
	StripLeft        bool       `json:"strip_left"`
	StripRight       bool       `json:"strip_right"`
	Behavior         string     `json:"behavior"`
	Invert           bool       `json:"invert"`
	AddPrefixSpace   *bool      `json:"add_prefix_space"`
	UseRegex         *bool      `json:"use_regex"`
	IndividualDigits bool       `json:"individual_digits"`
	Replacement      string     `json:"replacement"`
	PrependScheme    *string    `json:"prepend_scheme"`
	Split            *bool      `json:"split"`
	Start            int        `json:"start"`
	Stop             int        `json:"stop"`

	Single        []map[string]hfTemplate `json:"single"`
	SpecialTokens map[string]struct {
		IDs []int64 `json:"ids"`
	} `json:"special_tokens"`
	Sep json.RawMessage `json:"sep"` // Bert, Roberta: ["</s>", 2]
	Cls json.RawMessage `json:"cls"`
}

type hfPattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

type hfTemplate struct {
	ID string `json:"id"`
}

type hfModel struct {
	Type                    string   `json:"type"`
	Dropout                 *float64 `json:"dropout"`
	UnkToken                *string  `json:"unk_token"`
	ContinuingSubwordPrefix *string  `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string  `json:"end_of_word_suffix"`
	FuseUnk                 bool     `json:"fuse_unk"`
	ByteFallback            bool     `json:"byte_fallback"`
	IgnoreMerges            bool     `json:"ignore_merges"`

	vocab, merges []byte
	tokens        []hfToken // of vocab, if it is in order
}

// hfToken is an entry of the vocabulary. The name may be a view of the file.
type hfToken struct {
	name string
	id   int32
}

func (f *hfModel) parse(data []byte) error {
	c := jsonCursor{b: data}
	return c.end(f.read(&c))
}

// read reads the model that comes next.
func (f *hfModel) read(c *jsonCursor) error {
	small := []byte{'{'}
	err := c.members(func(name string) error {
		if name == "vocab" {
			at := c.i
			if tokens, err := c.vocabulary(); err == nil {
				f.vocab, f.tokens = c.b[at:c.i], tokens
				return nil
			}
			c.i = at
		}
		value, err := c.value()
		if err != nil {
			return err
		}
		switch name {
		case "vocab":
			f.vocab, f.tokens = value, nil
		case "merges":
			f.merges = value
		default:
			if len(small) > 1 {
				small = append(small, ',')
			}
			small = append(append(strconv.AppendQuote(small, name), ':'), value...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return unmarshalPart(append(small, '}'), f)
}

// isTrue is the value of an optional flag that is on by default.
func isTrue(b *bool) bool { return b == nil || *b }

// readHF reads tokenizer.json.
func readHF(data []byte, cfg *config) (*Tokenizer, error) {
	var f hfFile
	if err := f.parse(data); err != nil {
		return nil, err
	}
	t := &Tokenizer{format: "tokenizer.json"}

	bytesOnly := false
	if f.preTokenizer != nil {
		var err error
		if _, err = f.preTokenizer.steps(func(p hfPart) []hfPart { return p.PreTokenizers }); err == nil {
			t.stages, bytesOnly, err = hfPreTokenizer(nil, *f.preTokenizer)
		}
		if err != nil {
			return nil, fmt.Errorf("pre_tokenizer: %w", err)
		}
	}
	if err := t.hfModel(f.model, bytesOnly); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if f.normalizer != nil {
		var err error
		if t.normalizers, err = hfNormalizers(*f.normalizer); err != nil {
			return nil, fmt.Errorf("normalizer: %w", err)
		}
	}
	if err := t.hfAdded(f.addedTokens); err != nil {
		return nil, err
	}
	if err := t.addExtra(cfg); err != nil {
		return nil, err
	}
	if f.postProcessor != nil {
		if err := t.hfPostProcessor(*f.postProcessor); err != nil {
			return nil, fmt.Errorf("post_processor: %w", err)
		}
	}
	t.finish(cfg)
	if f.postProcessor == nil {
		if cfg.AddBOS != nil && *cfg.AddBOS && t.bos != none {
			t.prefix = []int32{t.bos}
		}
		if cfg.AddEOS != nil && *cfg.AddEOS && t.eos != none {
			t.suffix = []int32{t.eos}
		}
	}
	if err := t.hfDecoder(f.decoder); err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	return t, nil
}

// hfAdded reads the added tokens.
func (t *Tokenizer) hfAdded(raw []byte) error {
	if isNull(raw) {
		return nil
	}
	n := -1
	return eachElement(raw, func(value []byte) error {
		n++
		var e addedTokenEntry
		if err := unmarshalPart(value, &e); err != nil {
			return fmt.Errorf("added token %d: %w", n, err)
		}
		if e.Content == "" {
			return nil
		}
		id, inModel := t.modelID(e.Content)
		if !inModel {
			if e.ID == nil {
				return fmt.Errorf("added token %d %q: no id", n, e.Content)
			}
			if err := checkID(*e.ID); err != nil {
				return fmt.Errorf("added token %d %q: %w", n, e.Content, err)
			}
			id = int32(*e.ID)
		}
		t.added = append(t.added, e.token(id))
		if n >= maxAdded {
			return fmt.Errorf("more than %d added tokens", maxAdded)
		}
		return nil
	})
}

// modelID returns the id of a piece of the model by its name.
func (t *Tokenizer) modelID(name string) (int32, bool) {
	raw := name
	if t.model.byteLevel {
		raw, _ = fromByteLevel(name)
	}
	if raw != "" {
		if id := t.model.lookup(raw); id != none {
			return id, true
		}
	}
	id, ok := t.nameIDs[name]
	return id, ok
}

// hfModel builds the model. With bytesOnly its input is in the byte-level
// alphabet, and the pieces are kept as the bytes they stand for.
func (t *Tokenizer) hfModel(f hfModel, bytesOnly bool) error {
	if f.Type != "BPE" && f.Type != "" {
		return unsupported("type %q, expected BPE", f.Type)
	}
	if f.Dropout != nil && *f.Dropout != 0 {
		return unsupported("dropout %v, expected none", *f.Dropout)
	}
	if p := f.ContinuingSubwordPrefix; p != nil && *p != "" {
		return unsupported("continuing_subword_prefix %q, expected none", *p)
	}
	if p := f.EndOfWordSuffix; p != nil && *p != "" {
		return unsupported("end_of_word_suffix %q, expected none", *p)
	}
	m := &bpe{
		byteLevel: bytesOnly, ignoreMerges: f.IgnoreMerges, fallback: f.ByteFallback,
		unk: none, fuseUnk: f.FuseUnk,
	}
	t.model = m
	t.names = make(map[int32]string)
	t.nameIDs = make(map[string]int32)

	if err := t.hfVocab(f, bytesOnly); err != nil {
		return fmt.Errorf("vocab: %w", err)
	}

	if f.UnkToken != nil {
		id, ok := t.modelID(*f.UnkToken)
		if !ok {
			return fmt.Errorf("unk_token %q is not in the vocabulary", *f.UnkToken)
		}
		m.unk = id
	}
	for b := range 256 {
		m.byteID[b] = none
		switch {
		case bytesOnly:
			m.byteID[b] = m.lookup(string([]byte{byte(b)}))
			if m.byteID[b] == none && (m.unk != none || m.fallback) {
				return fmt.Errorf("byte-level vocabulary lacks byte 0x%02X, which unk_token and byte_fallback do not make up for", b)
			}
		case m.fallback:
			m.byteID[b] = m.lookup(fmt.Sprintf("<0x%02X>", b))
		}
	}
	if !bytesOnly {
		m.runeID = make(map[rune]int32)
		for id, p := range m.pieces {
			if p != "" && oneRune(p) > 0 {
				r, _ := utf8.DecodeRuneInString(p)
				m.runeID[r] = int32(id)
			}
		}
	}

	if n, err := t.hfMerges(f.merges, bytesOnly); err != nil {
		return fmt.Errorf("merges: merge %d: %w", n, err)
	}
	m.seal()
	return nil
}

// vocabulary reads the tokens and ids that come next.
func (c *jsonCursor) vocabulary() ([]hfToken, error) {
	// Most files have some 48 bytes or more for each token and its merge.
	tokens := make([]hfToken, 0, min((len(c.b)-c.i)/48, maxID))
	err := c.members(func(name string) error {
		value, err := c.value()
		if err != nil {
			return err
		}
		id, err := parseID(value)
		if err != nil {
			return fmt.Errorf("token %q %w", name, err)
		}
		tokens = append(tokens, hfToken{name, id})
		if len(tokens) > maxID+1 {
			return fmt.Errorf("more than %d tokens", maxID+1)
		}
		return nil
	})
	return tokens, err
}

// loadBatch is the number of entries that a table is filled with at a time. The
// tables are too large for the caches, and each entry goes anywhere in them: to go
// through the places of a whole batch first waits for many of them at once, in
// place of one after the other.
const loadBatch = 64

// hfVocab makes the pieces of the model.
func (t *Tokenizer) hfVocab(f hfModel, bytesOnly bool) error {
	m, tokens := t.model, f.tokens
	if tokens == nil {
		c := jsonCursor{b: f.vocab}
		var err error
		tokens, err = c.vocabulary()
		if err = c.end(err); err != nil {
			return err
		}
	}
	if len(tokens) == 0 {
		return errors.New("no tokens")
	}
	highest, size := int32(-1), 0
	for _, e := range tokens {
		highest = max(highest, e.id)
		size += len(e.name)
	}
	m.pieces = make([]string, highest+1)
	m.vocab = newPieceTable(len(tokens))
	taken := make([]bool, highest+1)
	block := make([]byte, 0, size+1) // never moves: no piece is longer than its name
	var hashes [loadBatch]uint64
	for len(tokens) > 0 {
		batch := tokens[:min(loadBatch, len(tokens))]
		var failed error
		seen := int32(0)
		for i, e := range batch {
			if taken[e.id] {
				failed = fmt.Errorf("id %d of token %q stands there twice", e.id, e.name)
				batch = batch[:i]
				break
			}
			taken[e.id] = true
			from := len(block)
			if !bytesOnly {
				block = append(block, e.name...)
			} else {
				var ok bool
				if block, ok = appendByteLevel(block, e.name); !ok || e.name == "" {
					block = block[:from]
					name := strings.Clone(e.name)
					t.names[e.id] = name
					t.nameIDs[name] = e.id
					continue
				}
			}
			m.pieces[e.id] = unsafe.String(unsafe.SliceData(block[from:]), len(block)-from)
			hashes[i] = pieceHash(m.pieces[e.id])
			seen |= m.vocab.first(hashes[i]).id1
		}
		runtime.KeepAlive(seen)
		for i, e := range batch {
			if m.pieces[e.id] != "" && !m.insertHashed(hashes[i], e.id) {
				return fmt.Errorf("token %q stands there twice", e.name)
			}
		}
		if failed != nil {
			return failed
		}
		tokens = tokens[len(batch):]
	}
	return nil
}

// hfMerges reads the merges. It returns the number of the merge that the error is
// about.
func (t *Tokenizer) hfMerges(raw []byte, bytesOnly bool) (int, error) {
	r := mergeReader{t: t, bytesOnly: bytesOnly, last: none}
	r.merges = make([]merge, 0, min(t.model.vocab.n, len(raw)/6))
	at, err := eachMerge(raw, func(n int, a, b string) error {
		if n > maxMerges {
			return fmt.Errorf("more than %d merges", maxMerges)
		}
		r.take(n, a, b)
		if len(r.batch) < loadBatch {
			return nil
		}
		_, err := r.flush()
		return err
	})
	// What is left in the batch stands before what the error is about.
	if n, failed := r.flush(); failed != nil {
		return n, failed
	}
	t.model.merges = newPairTable(r.merges)
	return at, err
}

// mergeReader enters merges in batches.
type mergeReader struct {
	t         *Tokenizer
	bytesOnly bool
	last      int32 // what the merge before gave
	merges    []merge
	batch     []mergeEntry
	text      []byte // the parts of the batch, as the model has them: bytes or characters
}

type mergeEntry struct {
	n                   int
	a, b                string
	from, cut, end      int // the parts are text[from:cut] and text[cut:end]
	known               bool
	leftHash, rightHash uint64
}

// take adds a merge to the batch.
func (r *mergeReader) take(n int, a, b string) {
	e := mergeEntry{n: n, a: a, b: b, from: len(r.text), known: !r.bytesOnly}
	if !r.bytesOnly {
		r.text = append(r.text, a...)
		e.cut = len(r.text)
		r.text = append(r.text, b...)
	} else {
		if r.text, e.known = appendByteLevel(r.text, a); e.known {
			e.cut = len(r.text)
			r.text, e.known = appendByteLevel(r.text, b)
		}
		e.known = e.known && a != "" && b != ""
	}
	e.end = len(r.text)
	r.batch = append(r.batch, e)
}

// flush enters the batch. It returns the number of the merge that the error is
// about, which stays the first of the batch.
func (r *mergeReader) flush() (int, error) {
	m := r.t.model
	text := unsafe.String(unsafe.SliceData(r.text), len(r.text))
	seen := int32(0)
	for i := range r.batch {
		if e := &r.batch[i]; e.known {
			e.leftHash, e.rightHash = pieceHash(text[e.from:e.cut]), pieceHash(text[e.cut:e.end])
			seen |= m.vocab.first(e.leftHash).id1 | m.vocab.first(e.rightHash).id1
		}
	}
	for i := range r.batch {
		e := &r.batch[i]
		left, right, to := none, none, none
		if e.known {
			left, right = m.lookupHashed(e.leftHash, text[e.from:e.cut]), m.lookupHashed(e.rightHash, text[e.cut:e.end])
			// Most files number their tokens in the order of the merges.
			whole := text[e.from:e.end]
			if r.last++; r.last > 0 && int(r.last) < len(m.pieces) && m.pieces[r.last] == whole && whole != "" {
				to = r.last
			} else {
				to = m.lookup(whole)
			}
		}
		if left == none || right == none || to == none { // names beside the alphabet
			var err error
			if left, right, to, err = r.t.namedMerge(e.a, e.b); err != nil {
				r.batch = r.batch[i:]
				return e.n, err
			}
		}
		r.last = to
		r.merges = append(r.merges, merge{left, right, uint32(e.n), to})
	}
	runtime.KeepAlive(seen)
	r.batch, r.text = r.batch[:0], r.text[:0]
	return 0, nil
}

// namedMerge finds the parts of a merge and their join by name.
func (t *Tokenizer) namedMerge(a, b string) (left, right, to int32, err error) {
	var ids [3]int32
	for i, name := range []string{a, b, a + b} {
		var ok bool
		if ids[i], ok = t.modelID(name); !ok {
			return 0, 0, 0, fmt.Errorf("%q %q: %q is not in the vocabulary", a, b, name)
		}
	}
	return ids[0], ids[1], ids[2], nil
}

// maxMerges bounds the merges of one file.
const maxMerges = 1 << 21

// maxSteps bounds the steps of a normalizer, a pre-tokenizer or a decoder.
const maxSteps = 16

// steps returns the parts of a Sequence, of Sequences in it too, or the one part.
func (p hfPart) steps(subs func(hfPart) []hfPart) ([]hfPart, error) {
	var out []hfPart
	var flatten func(p hfPart)
	flatten = func(p hfPart) {
		if p.Type != "Sequence" {
			out = append(out, p)
			return
		}
		for _, sub := range subs(p) {
			flatten(sub)
		}
	}
	flatten(p)
	if len(out) > maxSteps {
		return nil, fmt.Errorf("%d steps, expected at most %d", len(out), maxSteps)
	}
	return out, nil
}

// hfNormalizers makes the steps of a normalizer.
func hfNormalizers(p hfPart) ([]normalizer, error) {
	steps, err := p.steps(func(p hfPart) []hfPart { return p.Normalizers })
	var out []normalizer
	grown := 1
	for _, p := range steps {
		n, times, err := hfNormalizer(p)
		if err != nil {
			return nil, err
		}
		if grown *= times; grown > maxGrowth {
			return nil, fmt.Errorf("a text may become %d times as long, expected at most %d", grown, maxGrowth)
		}
		out = append(out, n)
	}
	return out, err
}

// hfNormalizer makes one step; a text becomes up to times as long by it.
func hfNormalizer(p hfPart) (n normalizer, times int, err error) {
	switch p.Type {
	// The factors are those of Unicode Standard Annex 15, for UTF-8.
	case "NFC":
		return unicodeForm(norm.NFC), 3, nil
	case "NFD":
		return unicodeForm(norm.NFD), 3, nil
	case "NFKC":
		return unicodeForm(norm.NFKC), 11, nil
	case "NFKD":
		return unicodeForm(norm.NFKD), 11, nil
	case "Lowercase":
		return lowercase{}, 2, nil
	case "Strip":
		return stripBlanks{p.StripLeft, p.StripRight}, 1, nil
	case "Prepend":
		if len(p.Prepend) > maxGrowth {
			return nil, 0, fmt.Errorf("type Prepend: %d bytes, expected at most %d", len(p.Prepend), maxGrowth)
		}
		return prependText(p.Prepend), 1, nil
	case "Replace":
		m, err := p.Pattern.matcher()
		if err != nil {
			return nil, 0, fmt.Errorf("type Replace: %w", err)
		}
		return replaceText{m, p.Content}, growth(m, p.Content), nil
	}
	return nil, 0, unsupported("type %q", p.Type)
}

func (p *hfPattern) matcher() (matcher, error) {
	switch {
	case p != nil && p.String != nil && *p.String != "":
		return literal(*p.String), nil
	case p != nil && p.Regex != nil && *p.Regex != "":
		return newMatcher(*p.Regex)
	}
	return nil, errors.New("no pattern, expected String or Regex")
}

// hfPreTokenizer appends the steps of a pre-tokenizer; bytes says that they end in
// the byte-level alphabet.
func hfPreTokenizer(out []preTokenizer, p hfPart) (_ []preTokenizer, bytes bool, err error) {
	switch p.Type {
	case "Sequence":
		for _, sub := range p.PreTokenizers {
			if bytes {
				return nil, false, unsupported("%s behind ByteLevel", sub.Type)
			}
			if out, bytes, err = hfPreTokenizer(out, sub); err != nil {
				return nil, false, err
			}
		}
		return out, bytes, nil
	case "ByteLevel":
		b := byteLevel{prefixSpace: isTrue(p.AddPrefixSpace)}
		if isTrue(p.UseRegex) {
			if b.words, err = newMatcher(gpt2Pattern); err != nil {
				return nil, false, err
			}
		}
		switch {
		case b.prefixSpace:
			out = append(out, b)
		case b.words != nil:
			out = append(out, split{m: b.words})
		}
		return out, true, nil
	case "Split":
		m, err := p.Pattern.matcher()
		if err != nil {
			return nil, false, fmt.Errorf("type Split: %w", err)
		}
		how, ok := behaviours[p.Behavior]
		if !ok {
			return nil, false, unsupported("type Split: behavior %q", p.Behavior)
		}
		return append(out, split{m: m, how: how, invert: p.Invert}), false, nil
	case "Digits":
		if p.IndividualDigits {
			return append(out, split{m: digitRuns{classes(), 1}}), false, nil
		}
		return append(out, split{m: digitRuns{classes(), math.MaxInt}, how: contiguous}), false, nil
	case "Metaspace":
		m := metaspace{mark: p.Replacement, split: isTrue(p.Split)}
		if oneRune(p.Replacement) == 0 {
			return nil, false, fmt.Errorf("type Metaspace: replacement %q, expected one character", p.Replacement)
		}
		if m.scheme, err = p.scheme(); err != nil {
			return nil, false, err
		}
		return append(out, m), false, nil
	}
	return nil, false, unsupported("type %q", p.Type)
}

// scheme is the prepend scheme of a Metaspace; add_prefix_space is its older form.
func (p hfPart) scheme() (prependScheme, error) {
	if p.PrependScheme == nil {
		if isTrue(p.AddPrefixSpace) {
			return prependAlways, nil
		}
		return prependNever, nil
	}
	switch *p.PrependScheme {
	case "always":
		return prependAlways, nil
	case "first":
		return prependFirst, nil
	case "never":
		return prependNever, nil
	}
	return 0, fmt.Errorf("type Metaspace: prepend_scheme %q, expected always, first or never", *p.PrependScheme)
}

// hfPostProcessor sets the tokens around a text.
func (t *Tokenizer) hfPostProcessor(p hfPart) error {
	switch p.Type {
	case "Sequence":
		for _, sub := range p.Processors {
			if err := t.hfPostProcessor(sub); err != nil {
				return err
			}
		}
		return nil
	case "ByteLevel":
		return nil // changes offsets only
	case "BertProcessing", "RobertaProcessing":
		cls, err := tokenAndID(p.Cls)
		if err != nil {
			return fmt.Errorf("%s: cls: %w", p.Type, err)
		}
		sep, err := tokenAndID(p.Sep)
		if err != nil {
			return fmt.Errorf("%s: sep: %w", p.Type, err)
		}
		t.prefix = append([]int32{cls}, t.prefix...)
		t.suffix = append(t.suffix, sep)
		return nil
	case "TemplateProcessing":
		var before, after []int32
		texts := 0
		for _, part := range p.Single {
			for kind, v := range part {
				switch {
				case kind == "Sequence" && v.ID == "A" && len(part) == 1:
					texts++
				case kind == "SpecialToken" && len(part) == 1:
					special, ok := p.SpecialTokens[v.ID]
					if !ok {
						return fmt.Errorf("type TemplateProcessing: %q is not among its special_tokens", v.ID)
					}
					for _, id := range special.IDs {
						if err := checkID(id); err != nil {
							return fmt.Errorf("type TemplateProcessing: %q: %w", v.ID, err)
						}
						if texts == 0 {
							before = append(before, int32(id))
						} else {
							after = append(after, int32(id))
						}
					}
				default:
					return unsupported("type TemplateProcessing: %s %q in a single text", kind, v.ID)
				}
			}
		}
		if texts != 1 {
			return fmt.Errorf("type TemplateProcessing: the text stands in the template %d times, expected once", texts)
		}
		t.prefix = append(before, t.prefix...)
		t.suffix = append(t.suffix, after...)
		return nil
	}
	return unsupported("type %q", p.Type)
}

// tokenAndID reads ["</s>", 2].
func tokenAndID(raw json.RawMessage) (int32, error) {
	var pair []json.RawMessage
	var id int64
	if err := json.Unmarshal(raw, &pair); err != nil || len(pair) != 2 {
		return 0, fmt.Errorf("found %.40s, expected a token and its id", raw)
	}
	if err := json.Unmarshal(pair[1], &id); err != nil {
		return 0, fmt.Errorf("found id %.40s, expected an integer", pair[1])
	}
	return int32(id), checkID(id)
}

// maxStrip bounds the characters that a decoder takes from an end of the text.
const maxStrip = 64

// hfDecoder makes the decode table.
func (t *Tokenizer) hfDecoder(p *hfPart) error {
	t.dec = newDecodeTable(t.size)
	d := &t.dec
	var steps []hfPart
	if p != nil {
		var err error
		if steps, err = p.steps(func(p hfPart) []hfPart { return p.Decoders }); err != nil {
			return err
		}
	} else {
		d.sep = " "
	}

	// Steps that depend on the token alone.
	type step func(token string, first bool) string
	var alone []step
	fallback, fused, positional := false, false, false
	grown := 1
	for _, p := range steps {
		switch p.Type {
		case "ByteLevel":
			if fallback || fused || positional {
				return unsupported("type ByteLevel behind ByteFallback, Fuse or Metaspace")
			}
			d.bytes, fused = true, true
		case "ByteFallback":
			if fallback || fused {
				return unsupported("type ByteFallback behind ByteFallback or Fuse")
			}
			fallback = true
			d.wholeRuns = true
		case "Fuse":
			fused = true
		case "Metaspace":
			if fallback || fused {
				return unsupported("type Metaspace behind ByteFallback or Fuse")
			}
			scheme, err := p.scheme()
			if err != nil {
				return err
			}
			if oneRune(p.Replacement) == 0 {
				return fmt.Errorf("type Metaspace: replacement %q, expected one character", p.Replacement)
			}
			positional = positional || scheme != prependNever
			alone = append(alone, func(token string, first bool) string {
				if first && scheme != prependNever {
					return strings.ReplaceAll(token, p.Replacement, "")
				}
				return strings.ReplaceAll(token, p.Replacement, " ")
			})
		case "Replace":
			if fallback || fused {
				return unsupported("type Replace behind ByteFallback or Fuse")
			}
			m, err := p.Pattern.matcher()
			if err != nil {
				return fmt.Errorf("type Replace: %w", err)
			}
			if grown *= growth(m, p.Content); grown > maxGrowth {
				return fmt.Errorf("a token may become %d times as long, expected at most %d", grown, maxGrowth)
			}
			plain := new(scratch)
			plain.begin(context.Background(), math.MaxInt)
			alone = append(alone, func(token string, _ bool) string {
				var b strings.Builder
				done := 0
				for _, f := range m.find(plain, nil, token) {
					b.WriteString(token[done:f.start] + p.Content)
					done = f.end
				}
				return b.String() + token[done:]
			})
		case "Strip":
			if oneRune(p.Content) == 0 || min(p.Start, p.Stop) < 0 || max(p.Start, p.Stop) > maxStrip {
				return fmt.Errorf("type Strip: content %.40q, start %d, stop %d: expected one character and counts up to %d", p.Content, p.Start, p.Stop, maxStrip)
			}
			st := stripChars{p.Content, p.Start, p.Stop}
			switch {
			case fused:
				d.fused = append(d.fused, st)
			case fallback:
				d.perToken = append(d.perToken, st)
			default:
				alone = append(alone, func(token string, _ bool) string { return st.apply(token) })
			}
		default:
			return unsupported("type %q", p.Type)
		}
	}
	if d.bytes && len(d.fused) > 0 {
		return unsupported("type Strip behind ByteLevel")
	}

	special := make(map[string]bool)
	for _, a := range t.added {
		if a.special {
			special[a.content] = true
		}
	}
	for id := range t.size {
		_, added := t.addedByID[int32(id)]
		if !added && (id >= len(t.model.pieces) || t.model.pieces[id] == "" && len(t.names) == 0) {
			continue // a gap in the vocabulary
		}
		if d.bytes && len(alone) == 0 && !added && t.model.byteLevel && t.model.pieces[id] != "" {
			d.kind[id], d.text[id] = decodeText, t.model.pieces[id]
			continue
		}
		name := t.Piece(int32(id))
		if i, ok := t.addedByID[int32(id)]; ok && t.added[i].normalized {
			name = t.normalize(name)
		}
		if name == "" {
			continue
		}
		d.kind[id] = decodeText
		d.skip[id] = special[name]
		text := name
		for _, f := range alone {
			text = f(text, false)
		}
		if positional {
			first := name
			for _, f := range alone {
				first = f(first, true)
			}
			if first != text {
				if d.first == nil {
					d.first = make(map[int32]string)
				}
				d.first[int32(id)] = first
			}
		}
		if d.bytes {
			if raw, ok := fromByteLevel(text); ok {
				text = raw
			}
		}
		if fallback {
			if b, ok := parseByte(text); ok {
				d.kind[id] = decodeByte
				text = string([]byte{b})
			}
		}
		d.text[id] = text
	}
	return nil
}
