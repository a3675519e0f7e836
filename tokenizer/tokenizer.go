package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"sync"

	"github.com/lukv/lukv/internal/inputfile"
)

var errNoVocabulary = errors.New("no tokenizer.json, tokenizer.model or tekken.json")

// Tokenizer turns text into token ids and back. It is immutable and safe for
// concurrent use.
type Tokenizer struct {
	format string
	model  *bpe

	added     []addedToken // ascending ids
	addedByID map[int32]int
	addedID   map[string]int32
	rawFind   *tokenFinder // tokens matched against the text as given
	normFind  *tokenFinder // tokens matched against normalised text

	normalizers []normalizer
	stages      []preTokenizer
	fast        scanner // the only stage, if a scanner does all its work
	users       *tokenFinder
	eachStretch bool // SentencePiece: every stretch gets the prefix, not only the first

	prefix, suffix []int32 // added by AddSpecial

	dec        decodeTable
	names      map[int32]string // pieces that are not in the byte-level alphabet
	nameIDs    map[string]int32 // pieces that the model cannot produce
	size       int
	bos, eos   int32
	scratching sync.Pool
}

// Span is a range of bytes text[Start:End].
type Span struct{ Start, End int }

// EncodeOptions says how to treat special tokens. The zero value recognises
// them in the text and adds none.
type EncodeOptions struct {
	// AddSpecial adds the tokens that the checkpoint expects around a text: those
	// of its post-processor in tokenizer.json, otherwise BOS and EOS as
	// tokenizer_config.json specifies. Leave it off for text that already holds
	// them, such as a rendered chat prompt.
	AddSpecial bool
	// SpecialAsText treats special tokens in the text as ordinary text. It is
	// for text from users, who must not be able to write control tokens. Added
	// tokens that are not special are still found.
	SpecialAsText bool
	// Data lists the parts of the text, ascending and disjoint, in which special
	// tokens are ordinary text: a special token with any byte in one of them is
	// not recognised. It is for what users, tools and documents contribute to a
	// rendered prompt. The text is not split at the boundaries: where Data hides
	// no special token, the ids are those of the whole text encoded without it.
	Data []Span
}

// TooLongError is returned by [Tokenizer.EncodeContext] for a text with more
// tokens than the caller allows.
type TooLongError struct {
	Limit int // most tokens that the caller allows
	Bytes int // length of the text
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("encode text of %d bytes: more than %d tokens", e.Bytes, e.Limit)
}

// files are the vocabulary files in the order in which they are tried.
var files = []struct {
	name  string
	limit int64 // maximum length in bytes: several times that of the longest published file
	read  func(data []byte, cfg *config) (*Tokenizer, error)
}{
	{"tokenizer.json", 64 << 20, readHF},
	{"tokenizer.model", 32 << 20, readSPM},
	{"tekken.json", 64 << 20, readTekken},
}

// Open reads the tokenizer of the checkpoint in folder dir: tokenizer.json,
// tokenizer.model or tekken.json, whichever is found first in this order, with
// tokenizer_config.json, special_tokens_map.json and added_tokens.json. All must be
// regular files of a plausible size: a pipe or a device in their place is an error.
func Open(dir string) (*Tokenizer, error) {
	t, err := Load(inputfile.Dir(dir))
	if err != nil {
		return nil, fmt.Errorf("open tokenizer in %s: %w", dir, err)
	}
	return t, nil
}

// Load is [Open] for a folder in any file system. A file system with a method Tokenizer
// that returns one, or an error, has it in place of files.
func Load(fsys fs.FS) (*Tokenizer, error) {
	if made, ok := fsys.(interface{ Tokenizer() (*Tokenizer, error) }); ok {
		if t, err := made.Tokenizer(); t != nil || err != nil {
			return t, err
		}
	}
	for _, f := range files {
		if _, err := fs.Stat(fsys, f.name); err == nil {
			return loadFile(fsys, f.name)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read tokenizer: %w", err)
		}
	}
	return nil, fmt.Errorf("read tokenizer: %w", errNoVocabulary)
}

// OpenFile reads one vocabulary file. Its format follows from its name, which
// must be tokenizer.json, tokenizer.model or tekken.json; the special-token
// files are read from the same folder.
func OpenFile(name string) (*Tokenizer, error) {
	dir, base := filepath.Split(name)
	if dir == "" {
		dir = "."
	}
	t, err := loadFile(inputfile.Dir(dir), base)
	if err != nil {
		return nil, fmt.Errorf("open tokenizer in %s: %w", dir, err)
	}
	return t, nil
}

// loadFile is [OpenFile] for a file in any file system.
func loadFile(fsys fs.FS, name string) (*Tokenizer, error) {
	for _, f := range files {
		if path.Base(name) != f.name {
			continue
		}
		data, err := inputfile.ReadFS(fsys, name, f.limit)
		if err != nil {
			return nil, fmt.Errorf("read tokenizer: %w", err)
		}
		cfg, err := readConfig(fsys, path.Dir(name))
		if err != nil {
			return nil, err
		}
		t, err := f.read(data, cfg)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		return t, nil
	}
	return nil, fmt.Errorf("read tokenizer %s: unknown kind of file, expected tokenizer.json, tokenizer.model or tekken.json", name)
}

// finish builds the fields that follow from the tokens and the config.
func (t *Tokenizer) finish(cfg *config) {
	t.scratching.New = func() any { return new(scratch) }
	if len(t.stages) == 1 {
		if sp, ok := t.stages[0].(split); ok && sp.how == isolated {
			t.fast, _ = sp.m.(scanner)
		}
	}
	byID(t.added)
	t.addedByID = make(map[int32]int, len(t.added))
	t.addedID = make(map[string]int32, len(t.added))
	t.size = len(t.model.pieces)
	var control []bool // special tokens that are also pieces
	var raw, norm []addedToken
	var rawForm, normForm []string
	for i, a := range t.added {
		t.addedByID[a.id] = i
		if _, ok := t.addedID[a.content]; !ok {
			t.addedID[a.content] = a.id
		}
		t.size = max(t.size, int(a.id)+1)
		if a.special && int(a.id) < len(t.model.pieces) && t.model.pieces[a.id] != "" {
			if control == nil {
				control = make([]bool, len(t.model.pieces))
			}
			control[a.id] = true
		}
		if a.normalized { // matched after the others, even where nothing is normalised
			norm = append(norm, a)
			normForm = append(normForm, t.normalize(a.content))
		} else {
			raw = append(raw, a)
			rawForm = append(rawForm, a.content)
		}
	}
	// Where a special token is found in the text, the model never sees it. Where it
	// is hidden (EncodeOptions.Data), merges must not produce it either.
	if control != nil {
		t.model.control = control
		t.model.merges.remove(control)
	}
	t.model.sealWords()
	t.rawFind = newTokenFinder(raw, rawForm)
	t.normFind = newTokenFinder(norm, normForm)

	t.bos, t.eos = t.find(cfg.BOS), t.find(cfg.EOS)
}

// find returns the id of the special token with the given text, or none.
func (t *Tokenizer) find(content tokenName) int32 {
	if content == "" {
		return none
	}
	id, ok := t.ID(string(content))
	if !ok {
		return none
	}
	return id
}

// maxText is the maximum length of a text in bytes: positions fit in 32 bits,
// with some room for normalisation to lengthen the text.
const maxText = 1 << 30

// Encode returns the ids of text. It is [Tokenizer.EncodeContext] without
// cancellation or a limit, for text whose length the program knows. It panics if
// text is longer than 1 GiB or o.Data is invalid.
func (t *Tokenizer) Encode(text string, o EncodeOptions) []int32 {
	ids, err := t.EncodeContext(context.Background(), text, math.MaxInt, o)
	if err != nil {
		panic(err)
	}
	return ids
}

// EncodeContext returns the ids of text, not nil if there are none. If there are
// more than limit, it returns a [*TooLongError] without encoding the rest; a text of
// more than 1 GiB is also an error. When ctx is done, EncodeContext returns its cause within milliseconds.
func (t *Tokenizer) EncodeContext(ctx context.Context, text string, limit int, o EncodeOptions) ([]int32, error) {
	s := t.scratching.Get().(*scratch)
	s.want = false
	ids, _, err := t.encode(ctx, s, text, limit, o)
	t.scratching.Put(s)
	return ids, err
}

// EncodeOffsets is like [Tokenizer.EncodeContext] without a limit, but also
// returns, for each token, the span of text that it stands for. Tokens that stand
// for nothing in the text, such as BOS or a prepended word mark, have an empty
// span. Where normalisation has changed the text, a token spans all the characters
// that it came from; such spans may overlap.
func (t *Tokenizer) EncodeOffsets(ctx context.Context, text string, o EncodeOptions) ([]int32, []Span, error) {
	s := t.scratching.Get().(*scratch)
	s.want = true
	ids, spans, err := t.encode(ctx, s, text, math.MaxInt, o)
	t.scratching.Put(s)
	return ids, spans, err
}

// encode appends the ids of text to s.ids and returns them, with spans if s.want.
func (t *Tokenizer) encode(ctx context.Context, s *scratch, text string, limit int, o EncodeOptions) ([]int32, []Span, error) {
	defer s.trim()
	if len(text) > maxText {
		return nil, nil, fmt.Errorf("encode text of %d bytes: expected at most %d", len(text), maxText)
	}
	if err := o.checkData(len(text)); err != nil {
		return nil, nil, err
	}
	// Telling whether a token is data takes its position in the original text.
	s.want = s.want || len(o.Data) > 0 && t.normFind != nil
	s.begin(ctx, limit)
	t.run(s, text, o)
	s.look()
	if s.err == errLimit {
		return nil, nil, &TooLongError{Limit: limit, Bytes: len(text)}
	}
	if s.err != nil {
		return nil, nil, s.err
	}
	if cap(s.ids) > keepEntries { // trim drops them
		return s.ids, s.spans, nil
	}
	return append([]int32{}, s.ids...), slices.Clone(s.spans), nil // never nil: [] in JSON
}

// checkData checks that o.Data is valid for a text of n bytes: hides would miss
// parts that are out of order.
func (o EncodeOptions) checkData(n int) error {
	last := 0
	for i, d := range o.Data {
		if d.Start < last || d.End < d.Start || d.End > n {
			return fmt.Errorf("encode text of %d bytes: part %d of Data is %d to %d, expected parts in ascending order", n, i, d.Start, d.End)
		}
		last = d.End
	}
	return nil
}

// hides reports whether a special token at text[start:end] is ordinary text.
func (o EncodeOptions) hides(start, end int) bool {
	if o.SpecialAsText {
		return true
	}
	i := sort.Search(len(o.Data), func(i int) bool { return o.Data[i].End > start })
	for ; i < len(o.Data) && o.Data[i].Start < end; i++ {
		if o.Data[i].Start < o.Data[i].End {
			return true
		}
	}
	return false
}

func (t *Tokenizer) run(s *scratch, text string, o EncodeOptions) {
	s.set(text, 0)
	if o.AddSpecial {
		for _, id := range t.prefix {
			s.emit(id, 0, 0)
		}
	}
	t.rawFind.cut(s, text, o.hides, func(start, end int) {
		t.stretch(s, text[start:end], start, o)
	}, func(id int32, start, end int) {
		s.set(text, 0)
		s.emit(id, start, end)
	})
	if o.AddSpecial {
		s.set(text, 0)
		for _, id := range t.suffix {
			s.emit(id, len(text), len(text))
		}
	}
}

// stretch encodes text between added tokens; it starts at base in the whole text.
func (t *Tokenizer) stretch(s *scratch, text string, base int, o EncodeOptions) {
	s.set(text, base)
	for _, n := range t.normalizers {
		n.normalize(s, base == 0 || t.eachStretch)
	}
	if t.normFind == nil {
		t.sub(s, base == 0)
		return
	}
	whole, src, at := s.cur, s.src, s.base
	narrow := func(start, end int) {
		s.cur, s.base, s.src = whole[start:end], at+start, nil
		if src != nil {
			s.src = src[start:end]
		}
	}
	hides := func(start, end int) bool {
		place := s.origin(start, end)
		return o.hides(place.Start, place.End)
	}
	t.normFind.cut(s, whole, hides, func(start, end int) {
		// The pre-tokenizers may rewrite s.cur; whole must outlive that.
		if len(t.stages) > 0 {
			s.bufs, s.altBufs = s.altBufs, s.bufs
			s.srcs, s.altSrcs = s.altSrcs, s.srcs
		}
		narrow(start, end)
		t.sub(s, base == 0 && start == 0)
		if len(t.stages) > 0 {
			s.bufs, s.altBufs = s.altBufs, s.bufs
			s.srcs, s.altSrcs = s.altSrcs, s.srcs
		}
		narrow(0, len(whole))
	}, s.emit)
}

// sub pre-tokenizes the current stretch and encodes its pieces.
func (t *Tokenizer) sub(s *scratch, first bool) {
	if t.users != nil {
		t.users.cut(s, s.cur, nil, func(start, end int) { t.model.encode(s, start, end) }, s.emit)
		return
	}
	if t.fast != nil {
		text := s.cur
		for i := 0; i < len(text); {
			e := t.fast.scan(text, i)
			if s.spent(e - i) {
				return
			}
			t.model.encode(s, i, e)
			i = e
		}
		return
	}
	s.pieces = append(s.pieces[:0], piece{0, len(s.cur)})
	for _, st := range t.stages {
		st.cut(s, first)
	}
	for _, p := range s.pieces {
		if s.spent(p.end - p.start) {
			return
		}
		if p.start < p.end {
			t.model.encode(s, p.start, p.end)
		}
	}
}

// normalize returns text in normalised form.
func (t *Tokenizer) normalize(text string) string {
	s := new(scratch)
	s.begin(context.Background(), math.MaxInt)
	s.set(text, 0)
	for _, n := range t.normalizers {
		n.normalize(s, true)
	}
	return s.cur
}

// VocabSize is one more than the highest id. The model's embedding may have more
// rows.
func (t *Tokenizer) VocabSize() int { return t.size }

// Piece returns the name of token id as written in its vocabulary file
// ("Ġthe", "▁the", "<0x0A>", "<s>"), or "" for an id that is not a token.
func (t *Tokenizer) Piece(id int32) string {
	if i, ok := t.addedByID[id]; ok {
		return t.added[i].content
	}
	if id < 0 {
		return ""
	}
	return t.modelPiece(id)
}

// ID returns the id of the token with the name that [Tokenizer.Piece] gives it.
func (t *Tokenizer) ID(piece string) (int32, bool) {
	if id, ok := t.addedID[piece]; ok {
		return id, true
	}
	return t.modelID(piece)
}

// BOS is the id of the token that begins a text, or -1.
func (t *Tokenizer) BOS() int32 { return t.bos }

// EOS is the id of the token that ends a text, or -1. A model may list further end
// tokens in its generation_config.json.
func (t *Tokenizer) EOS() int32 { return t.eos }

// IsSpecial reports whether id is a special token, which Decode can leave out.
func (t *Tokenizer) IsSpecial(id int32) bool {
	i, ok := t.addedByID[id]
	return ok && t.added[i].special
}

// TokenBytes returns the bytes that a token stands for within a text, which may be
// part of a character: one byte for a byte-fallback token, a blank for a word
// mark. A special token yields the text that it decodes to; an id that is not a
// token yields nothing. What a decoder does at the ends of the whole text, such as
// dropping a leading blank, is not done here.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	d := &t.dec
	if id < 0 || int(id) >= len(d.kind) {
		return nil
	}
	text := d.text[id]
	if d.kind[id] != decodeByte {
		for _, p := range d.perToken {
			text = p.apply(text)
		}
	}
	return []byte(text)
}
