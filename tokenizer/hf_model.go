package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"unicode/utf8"
	"unsafe"

	"github.com/lukv/lukv/internal/strictjson"
)

type hfModel struct {
	Type                    string   `json:"type"`
	Dropout                 *float64 `json:"dropout"`
	UnkToken                *string  `json:"unk_token"`
	ContinuingSubwordPrefix *string  `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string  `json:"end_of_word_suffix"`
	FuseUnk                 bool     `json:"fuse_unk"`
	ByteFallback            bool     `json:"byte_fallback"`
	IgnoreMerges            bool     `json:"ignore_merges"`

	tokens     []hfToken // the vocabulary
	merges     []byte    // as JSON
	mergeLines []string  // in place of merges: two pieces with a blank between them
}

// hfToken is an entry of the vocabulary. The name may be a view of the file.
type hfToken struct {
	name string
	id   int32
}

// read reads the model that comes next.
func (f *hfModel) read(s *strictjson.Scanner) error {
	var small bytes.Buffer // an object of the fields that encoding/json reads
	err := s.Object("an object", func(name string) (err error) {
		switch {
		case name == "merges":
			f.merges, err = s.Outline()
			return err
		case name == "vocab" && s.Peek() == '{':
			if f.tokens, err = readVocabulary(s); err != nil {
				return fmt.Errorf("vocab: %w", err)
			}
			return nil
		case name == "vocab": // of another type of model
			return s.Skip()
		}
		value, err := s.Raw()
		if small.Len() > 0 {
			small.WriteByte(',')
		}
		key, _ := json.Marshal(name) // a string always encodes
		fmt.Fprintf(&small, "%s:%s", key, value)
		return err
	})
	if err != nil {
		return err
	}
	return unmarshalPart(newScanner([]byte("{"+small.String()+"}")), f)
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

	if n, err := t.hfMerges(f, bytesOnly); err != nil {
		return fmt.Errorf("merges: merge %d: %w", n, err)
	}
	m.seal()
	return nil
}

// readVocabulary reads the tokens and ids that come next.
func readVocabulary(s *strictjson.Scanner) ([]hfToken, error) {
	// Most files have some 48 bytes or more for each token and its merge.
	tokens := make([]hfToken, 0, min(s.Rest()/48, maxID))
	err := s.Members("an object", func(name string) error {
		id, err := s.Int(0, maxID)
		if err != nil {
			return fmt.Errorf("id of token %q: %w", name, err)
		}
		tokens = append(tokens, hfToken{name, int32(id)})
		if len(tokens) > maxID+1 {
			return fmt.Errorf("found more than %d tokens", maxID+1)
		}
		return nil
	})
	return tokens, err
}

// loadBatch is the number of entries added to a table at a time. The tables are
// too large for the caches, and entries land anywhere in them: touching the slots
// of a whole batch first waits for many of them at once instead of one after the
// other.
const loadBatch = 64

// hfVocab makes the pieces of the model.
func (t *Tokenizer) hfVocab(f hfModel, bytesOnly bool) error {
	m, tokens := t.model, f.tokens
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
				failed = fmt.Errorf("id %d of token %q occurs twice", e.id, e.name)
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
		}
		// In a loop of its own, so that few instructions lie between two waits.
		for _, h := range hashes[:len(batch)] {
			seen |= m.vocab.first(h).id1
		}
		runtime.KeepAlive(seen)
		for i, e := range batch {
			if m.pieces[e.id] != "" && !m.insertHashed(hashes[i], e.id) {
				return fmt.Errorf("token %q occurs twice", e.name)
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
func (t *Tokenizer) hfMerges(f hfModel, bytesOnly bool) (n int, err error) {
	var merges []merge
	if len(f.mergeLines) > 0 {
		merges, n, err = t.mergeLines(f.mergeLines, bytesOnly)
	} else {
		r := mergeReader{t: t, bytesOnly: bytesOnly, last: none}
		r.merges = make([]merge, 0, min(t.model.vocab.n, len(f.merges)/6))
		n, err = r.read(f.eachMerge)
		merges = r.merges
	}
	t.model.merges = newPairTable(merges)
	return n, err
}

// mergePart is how many lines of merges it takes to keep a processor busy.
const mergePart = 1 << 12

// mergeLines reads merges on all processors, each a part of the lines.
func (t *Tokenizer) mergeLines(lines []string, bytesOnly bool) ([]merge, int, error) {
	merges := make([]merge, len(lines))
	parts := min(runtime.GOMAXPROCS(0), (len(lines)-1)/mergePart+1)
	at, errs := make([]int, parts), make([]error, parts)
	var wait sync.WaitGroup
	for i := range parts {
		from, to := i*len(lines)/parts, (i+1)*len(lines)/parts
		wait.Go(func() {
			r := mergeReader{t: t, bytesOnly: bytesOnly, last: none, merges: merges[from:from:to]}
			at[i], errs[i] = r.read(eachLine(lines, from, to))
		})
	}
	wait.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, at[i], err
		}
	}
	return merges, 0, nil
}

// mergeReader enters merges in batches.
type mergeReader struct {
	t         *Tokenizer
	bytesOnly bool
	last      int32 // result of the previous merge
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

// read enters the merges that each calls its argument with. It returns the number of the
// merge that the error is about, as each does.
func (r *mergeReader) read(each func(func(n int, a, b string) error) (int, error)) (int, error) {
	at, err := each(func(n int, a, b string) error {
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
	// The rest of the batch comes before the merge that the error is about.
	if n, failed := r.flush(); failed != nil {
		return n, failed
	}
	return at, err
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
// about, which remains the first of the batch.
func (r *mergeReader) flush() (int, error) {
	m := r.t.model
	text := unsafe.String(unsafe.SliceData(r.text), len(r.text))
	for i := range r.batch {
		if e := &r.batch[i]; e.known {
			e.leftHash, e.rightHash = pieceHash(text[e.from:e.cut]), pieceHash(text[e.cut:e.end])
		}
	}
	seen := int32(0)
	for i := range r.batch {
		e := &r.batch[i]
		seen |= m.vocab.first(e.leftHash).id1 | m.vocab.first(e.rightHash).id1
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
		if left == none || right == none || to == none { // names outside the alphabet
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
