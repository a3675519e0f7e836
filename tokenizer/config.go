package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/lukv/lukv/internal/inputfile"
)

// config holds the content of the files beside the vocabulary.
type config struct {
	Class        string                     `json:"tokenizer_class"`
	BOS          tokenName                  `json:"bos_token"`
	EOS          tokenName                  `json:"eos_token"`
	Pad          tokenName                  `json:"pad_token"`
	Unk          tokenName                  `json:"unk_token"`
	AddBOS       *bool                      `json:"add_bos_token"`
	AddEOS       *bool                      `json:"add_eos_token"`
	Legacy       *bool                      `json:"legacy"`
	AddedDecoder map[string]addedTokenEntry `json:"added_tokens_decoder"`
	Additional   []tokenName                `json:"additional_special_tokens"`

	added map[string]int32 // added_tokens.json
}

// tokenName is a token given as a string, as an object with its content, or null.
type tokenName string

func (n *tokenName) UnmarshalJSON(b []byte) error {
	var obj struct {
		Content string `json:"content"`
	}
	if bytes.HasPrefix(b, []byte("{")) {
		err := json.Unmarshal(b, &obj)
		*n = tokenName(obj.Content)
		return err
	}
	var s *string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	*n = ""
	if s != nil {
		*n = tokenName(*s)
	}
	return nil
}

// addedTokenEntry is an added token as tokenizer.json and tokenizer_config.json
// write it.
type addedTokenEntry struct {
	ID         *int64 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized *bool  `json:"normalized"` // default: true unless special
	Special    bool   `json:"special"`
}

func (e addedTokenEntry) token(id int32) addedToken {
	return addedToken{
		id: id, content: e.Content, special: e.Special, singleWord: e.SingleWord,
		lstrip: e.LStrip, rstrip: e.RStrip, normalized: e.Normalized != nil && *e.Normalized || e.Normalized == nil && !e.Special,
	}
}

// replacesPostProcessor reports whether add_bos_token and add_eos_token replace the
// post-processor of tokenizer.json: they do for the classes of transformers 4 that build
// their own; add_bos_token is on by default there.
func (cfg *config) replacesPostProcessor() bool {
	switch strings.TrimSuffix(cfg.Class, "Fast") {
	case "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer":
		return cfg.AddBOS != nil || cfg.AddEOS != nil
	}
	return false
}

// maxConfig is the maximum length in bytes of a special-token file.
const maxConfig = 2 << 20

// readConfig reads the special-token files in folder dir; each may be missing.
func readConfig(fsys fs.FS, dir string) (*config, error) {
	cfg := &config{}
	// tokenizer_config.json takes precedence over special_tokens_map.json.
	for _, f := range []struct {
		name string
		into any
	}{
		{"special_tokens_map.json", cfg},
		{"tokenizer_config.json", cfg},
		{"added_tokens.json", &cfg.added},
	} {
		data, err := inputfile.ReadFS(fsys, path.Join(dir, f.name), maxConfig)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read tokenizer: %w", err)
		}
		if err := json.Unmarshal(data, f.into); err != nil {
			return nil, fmt.Errorf("read %s: %w", f.name, err)
		}
	}
	return cfg, nil
}

// extraTokens returns the added tokens of the special-token files, in ascending
// order of ids.
func (cfg *config) extraTokens() ([]addedToken, error) {
	var out []addedToken
	taken := make(map[int32]bool, len(cfg.AddedDecoder))
	for key, e := range cfg.AddedDecoder {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 {
			return nil, fmt.Errorf("tokenizer_config.json: added_tokens_decoder: found the id %q, expected a token id", key)
		}
		if err := checkID(id); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: added_tokens_decoder: %w", err)
		}
		out = append(out, e.token(int32(id)))
		taken[int32(id)] = true
	}
	special := map[tokenName]bool{cfg.BOS: true, cfg.EOS: true, cfg.Pad: true, cfg.Unk: true}
	for _, name := range cfg.Additional {
		special[name] = true
	}
	for content, id := range cfg.added {
		if err := checkID(int64(id)); err != nil {
			return nil, fmt.Errorf("added_tokens.json: %w", err)
		}
		if !taken[id] {
			out = append(out, addedToken{id: id, content: content, special: special[tokenName(content)]})
		}
	}
	byID(out)
	return out, nil
}

// maxID bounds token ids, so that a bad file cannot exhaust memory.
const maxID = 1 << 20

func checkID(id int64) error {
	if id < 0 || id > maxID {
		return fmt.Errorf("token id %d is out of range, expected 0 to %d", id, maxID)
	}
	return nil
}

// addExtra adds the tokens of the special-token files that the vocabulary file
// does not have; where both have a token or an id, the vocabulary file wins, but how a token
// is found is what tokenizer_config.json says, as in transformers.
func (t *Tokenizer) addExtra(cfg *config) error {
	extra, err := cfg.extraTokens()
	if err != nil {
		return err
	}
	ids := make(map[int32]bool)
	names := make(map[string]bool)
	for i, a := range t.added {
		ids[a.id], names[a.content] = true, true
		if e, ok := cfg.AddedDecoder[strconv.Itoa(int(a.id))]; ok && e.Content == a.content {
			t.added[i] = e.token(a.id)
			t.added[i].special = a.special
		}
	}
	for _, a := range extra {
		if a.content == "" || ids[a.id] || names[a.content] {
			continue
		}
		if own := t.modelPiece(a.id); own != "" && own != a.content {
			continue
		}
		ids[a.id], names[a.content] = true, true
		t.added = append(t.added, a)
	}
	return checkAdded(t.added)
}

// modelPiece returns the name of a piece of the model, or "".
func (t *Tokenizer) modelPiece(id int32) string {
	if name, ok := t.names[id]; ok {
		return name
	}
	if int(id) >= len(t.model.pieces) {
		return ""
	}
	if t.model.byteLevel {
		return toByteLevel(t.model.pieces[id])
	}
	return t.model.pieces[id]
}
