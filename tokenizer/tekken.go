package tokenizer

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// tekkenFile is tekken.json, the vocabulary format of Mistral.
type tekkenFile struct {
	config struct {
		Pattern    string `json:"pattern"`
		VocabSize  int64  `json:"default_vocab_size"`
		NumSpecial int64  `json:"default_num_special_tokens"`
	}
	vocab         []byte
	specialTokens []byte
}

func (f *tekkenFile) parse(data []byte) error {
	s := newScanner(data)
	err := s.Object("an object", func(name string) (err error) {
		switch name {
		case "config":
			err = unmarshalPart(s, &f.config)
		case "vocab":
			f.vocab, err = s.Outline()
		case "special_tokens":
			f.specialTokens, err = s.Outline()
		default:
			return s.Skip()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.End()
}

// maxTekkenSpecial bounds the special tokens of a tekken.json, which gives their
// number without having to list them all.
const maxTekkenSpecial = 1 << 14

// tekkenSpecial are the special tokens of files that do not list theirs.
var tekkenSpecial = []string{
	"<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
	"[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
	"[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
}

// readTekken reads tekken.json: ids are special tokens first, then the ranks.
func readTekken(data []byte, cfg *config) (*Tokenizer, error) {
	var f tekkenFile
	if err := f.parse(data); err != nil {
		return nil, err
	}
	c := f.config
	if c.NumSpecial < 1 || c.NumSpecial > maxTekkenSpecial {
		return nil, fmt.Errorf("config: default_num_special_tokens %d, expected 1 to %d", c.NumSpecial, maxTekkenSpecial)
	}
	if c.VocabSize > maxID || c.VocabSize-c.NumSpecial < 256 {
		return nil, fmt.Errorf("config: default_vocab_size %d with default_num_special_tokens %d: expected at least 256 more and at most %d", c.VocabSize, c.NumSpecial, maxID)
	}
	// The file may list ranks beyond the vocabulary, which are unused.
	active := c.VocabSize - c.NumSpecial
	if most := int64(len(f.vocab) / len(`{"rank":0}`)); most < active {
		return nil, fmt.Errorf("vocab: at most %d ranks, expected at least %d", most, active)
	}
	words, err := newMatcher(c.Pattern)
	if err != nil {
		return nil, err
	}
	if p, ok := words.(*pattern); ok && p.ruby {
		// tiktoken, which reads these files, takes {1,3}+ as possessive.
		return nil, unsupported("config: pattern %.200q, of which Oniguruma and tiktoken read a part differently", c.Pattern)
	}
	t := &Tokenizer{format: "tekken.json"}
	if _, ok := words.(scanner); ok {
		t.stages = []preTokenizer{split{m: words}}
	} else {
		// What the pattern does not match is left out.
		t.stages = []preTokenizer{split{m: words, how: removed, invert: true}}
	}
	m := &bpe{byteLevel: true, ignoreMerges: true, unk: none}
	t.model = m
	m.pieces = make([]string, c.VocabSize)
	m.vocab = newPieceTable(int(active))
	if err := m.tekkenVocab(f.vocab, c.NumSpecial, active); err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	for b := range 256 {
		if m.byteID[b] = m.lookup(string([]byte{byte(b)})); m.byteID[b] == none {
			return nil, fmt.Errorf("vocab: no token for byte 0x%02X", b)
		}
	}
	// Two neighbours merge if together they form a token, lowest rank first.
	merges := make([]merge, 0, 3*active)
	for id := int32(c.NumSpecial); id < int32(c.VocabSize); id++ {
		piece := m.pieces[id]
		if piece == "" {
			return nil, fmt.Errorf("vocab: no rank %d", int64(id)-c.NumSpecial)
		}
		for i := 1; i < len(piece); i++ {
			if left := m.lookup(piece[:i]); left != none {
				if right := m.lookup(piece[i:]); right != none {
					merges = append(merges, merge{left, right, uint32(id), id})
					if len(merges) > maxMerges {
						return nil, fmt.Errorf("vocab: more than %d merges", maxMerges)
					}
				}
			}
		}
	}
	m.merges = newPairTable(merges)
	m.seal()

	names, err := tekkenNames(f.specialTokens, c.NumSpecial)
	if err != nil {
		return nil, fmt.Errorf("special_tokens: %w", err)
	}
	seen := make(map[string]bool, len(names))
	for i, name := range names {
		if name == "" {
			name = fmt.Sprintf("<SPECIAL_%d>", i)
		}
		if seen[name] {
			return nil, fmt.Errorf("special_tokens: %q occurs twice", name)
		}
		seen[name] = true
		t.added = append(t.added, addedToken{id: int32(i), content: name, special: true})
	}
	if err := t.addExtra(cfg); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		into *tokenName
		name string
	}{{&cfg.BOS, "<s>"}, {&cfg.EOS, "</s>"}, {&cfg.Pad, "<pad>"}, {&cfg.Unk, "<unk>"}} {
		if *f.into == "" && seen[f.name] {
			*f.into = tokenName(f.name)
		}
	}
	t.finish(cfg)
	t.surround(cfg)

	t.dec = newDecodeTable(t.size)
	d := &t.dec
	d.bytes = true
	for id, piece := range m.pieces {
		d.kind[id], d.text[id] = decodeText, piece
	}
	for _, a := range t.added {
		if int64(a.id) < c.NumSpecial {
			d.kind[a.id], d.text[a.id] = decodeControl, ""
		} else {
			d.kind[a.id], d.text[a.id], d.skip[a.id] = decodeText, a.content, a.special
		}
	}
	return t, nil
}

// tekkenVocab reads the ranks below active; their ids start at special.
func (m *bpe) tekkenVocab(raw []byte, special, active int64) error {
	var block []byte // of many pieces
	s := newScanner(raw)
	err := s.Array("an array", func(n int) error {
		rank, text := int64(-1), ""
		err := s.Object("an object", func(name string) (err error) {
			switch name {
			case "rank":
				rank, err = s.Int(0, math.MaxInt64)
			case "token_bytes":
				text, err = s.View("base64")
			default:
				err = s.Skip()
			}
			return err
		})
		if err != nil || rank < 0 {
			return fmt.Errorf("entry %d: %w", n, cmp.Or(err, errors.New("no rank")))
		}
		if rank >= active {
			return nil
		}
		size := base64.StdEncoding.DecodedLen(len(text))
		if size == 0 || size > maxPieceLen+2 {
			return fmt.Errorf("rank %d has about %d bytes, expected 1 to %d", rank, size, maxPieceLen)
		}
		if cap(block)-len(block) < size {
			block = make([]byte, 0, 1<<16)
		}
		from := len(block)
		if block, err = base64.StdEncoding.AppendDecode(block, []byte(text)); err != nil {
			return fmt.Errorf("rank %d: token_bytes: %w", rank, err)
		}
		id := int32(rank + special)
		if m.pieces[id] != "" {
			return fmt.Errorf("rank %d occurs twice", rank)
		}
		m.pieces[id] = unsafe.String(unsafe.SliceData(block[from:]), len(block)-from)
		if len(block) == from || !m.insert(id) {
			return fmt.Errorf("rank %d has bytes %q, expected some that no other rank has", rank, block[from:])
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.End()
}

// tekkenNames reads the names of the special tokens, "" where the file has none.
func tekkenNames(raw []byte, special int64) ([]string, error) {
	names := make([]string, special)
	if isNull(raw) {
		copy(names, tekkenSpecial)
		return names, nil
	}
	s := newScanner(raw)
	err := s.Array("an array", func(n int) error {
		var e struct {
			Rank int64  `json:"rank"`
			Str  string `json:"token_str"`
		}
		if err := unmarshalPart(s, &e); err != nil {
			return fmt.Errorf("entry %d: %w", n, err)
		}
		if e.Rank < 0 || e.Rank >= special || e.Str == "" || names[e.Rank] != "" {
			return fmt.Errorf("entry %d %q has rank %d, expected one of its own below %d", n, e.Str, e.Rank, special)
		}
		names[e.Rank] = e.Str
		return nil
	})
	if err == nil {
		err = s.End()
	}
	return names, err
}
