package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
)

// tekkenFile is tekken.json, the vocabulary format of Mistral.
type tekkenFile struct {
	Config struct {
		Pattern     string `json:"pattern"`
		VocabSize   int64  `json:"default_vocab_size"`
		NumSpecial  int64  `json:"default_num_special_tokens"`
		VocabTokens int64  `json:"num_vocab_tokens"`
		Version     string `json:"version"`
	} `json:"config"`
	Vocab []struct {
		Rank  int64  `json:"rank"`
		Bytes string `json:"token_bytes"`
	} `json:"vocab"`
	SpecialTokens []struct {
		Rank int64  `json:"rank"`
		Str  string `json:"token_str"`
	} `json:"special_tokens"`
}

// tekkenSpecial are the special tokens of files that do not list theirs.
var tekkenSpecial = []string{
	"<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
	"[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
	"[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
}

// readTekken reads tekken.json: ids are special tokens first, then the ranks.
func readTekken(data []byte, cfg *config) (*Tokenizer, error) {
	var f tekkenFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, err
	}
	c := f.Config
	if c.VocabSize > maxID || c.NumSpecial < 0 || c.VocabSize-c.NumSpecial < 256 {
		return nil, fmt.Errorf("config: default_vocab_size %d with default_num_special_tokens %d: expected at least 256 more and at most %d", c.VocabSize, c.NumSpecial, maxID)
	}
	// The file may list ranks beyond the vocabulary, which are not in use.
	active := c.VocabSize - c.NumSpecial
	if int64(len(f.Vocab)) < active {
		return nil, fmt.Errorf("vocab: %d ranks, expected at least %d", len(f.Vocab), active)
	}
	words, err := newMatcher(c.Pattern)
	if err != nil {
		return nil, err
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
	for i, v := range f.Vocab {
		if v.Rank < 0 {
			return nil, fmt.Errorf("vocab: entry %d has rank %d", i, v.Rank)
		}
		if v.Rank >= active {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(v.Bytes)
		if err != nil {
			return nil, fmt.Errorf("vocab: rank %d: token_bytes: %w", v.Rank, err)
		}
		if len(raw) == 0 || len(raw) > maxPieceLen {
			return nil, fmt.Errorf("vocab: rank %d has %d bytes, expected 1 to %d", v.Rank, len(raw), maxPieceLen)
		}
		id := int32(v.Rank + c.NumSpecial)
		if m.pieces[id] != "" {
			return nil, fmt.Errorf("vocab: rank %d stands there twice", v.Rank)
		}
		m.pieces[id] = string(raw)
		if !m.insert(id) {
			return nil, fmt.Errorf("vocab: bytes %q stand there twice", raw)
		}
	}
	for b := range 256 {
		if m.byteID[b] = m.lookup(string([]byte{byte(b)})); m.byteID[b] == none {
			return nil, fmt.Errorf("vocab: no token for byte 0x%02X", b)
		}
	}
	// Two neighbours merge if together they are a token, the lowest rank first.
	m.merges = newPairTable(3 * int(active))
	for id := int32(c.NumSpecial); id < int32(c.VocabSize); id++ {
		piece := m.pieces[id]
		if piece == "" {
			return nil, fmt.Errorf("vocab: no rank %d", int64(id)-c.NumSpecial)
		}
		for i := 1; i < len(piece); i++ {
			if left := m.lookup(piece[:i]); left != none {
				if right := m.lookup(piece[i:]); right != none {
					m.merges.add(left, right, uint32(id), id)
				}
			}
		}
	}
	m.seal()

	names := make([]string, c.NumSpecial)
	if f.SpecialTokens == nil {
		copy(names, tekkenSpecial)
	}
	for i, s := range f.SpecialTokens {
		if s.Rank < 0 || s.Rank >= c.NumSpecial || s.Str == "" || names[s.Rank] != "" {
			return nil, fmt.Errorf("special_tokens: entry %d %q has rank %d, expected one of its own below %d", i, s.Str, s.Rank, c.NumSpecial)
		}
		names[s.Rank] = s.Str
	}
	seen := make(map[string]bool, len(names))
	for i, name := range names {
		if name == "" {
			name = fmt.Sprintf("<SPECIAL_%d>", i)
		}
		if seen[name] {
			return nil, fmt.Errorf("special_tokens: %q stands there twice", name)
		}
		seen[name] = true
		t.added = append(t.added, addedToken{id: int32(i), content: name, special: true})
	}
	if len(names) == 0 {
		return nil, errors.New("config: no special tokens")
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
