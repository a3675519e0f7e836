package tokenizer

import (
	"encoding/json"
	"fmt"

	"github.com/lukv/lukv/internal/strictjson"
)

// hfFile is tokenizer.json. Each of its parts has a type, which determines its
// fields.
type hfFile struct {
	added         []addedTokenEntry
	normalizer    *hfPart
	preTokenizer  *hfPart
	postProcessor *hfPart
	decoder       *hfPart
	model         hfModel
}

// parse reads the file; the merges stay JSON text.
func (f *hfFile) parse(data []byte) error {
	parts := map[string]**hfPart{
		"normalizer": &f.normalizer, "pre_tokenizer": &f.preTokenizer,
		"post_processor": &f.postProcessor, "decoder": &f.decoder,
	}
	s := newScanner(data)
	err := s.Object("an object", func(name string) (err error) {
		into, ok := parts[name]
		switch {
		case name == "added_tokens":
			err = f.readAdded(s)
		case name == "model" && !s.Null():
			err = f.model.read(s)
		case ok:
			err = unmarshalPart(s, into)
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

// isTrue is the value of an optional flag that is on by default.
func isTrue(b *bool) bool { return b == nil || *b }

// readHF reads tokenizer.json.
func readHF(data []byte, cfg *config) (*Tokenizer, error) {
	var f hfFile
	if err := f.parse(data); err != nil {
		return nil, err
	}
	return f.build(cfg)
}

// build makes the tokenizer that the file describes.
func (f *hfFile) build(cfg *config) (*Tokenizer, error) {
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
	if err := t.hfAdded(f.added); err != nil {
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
	if f.postProcessor == nil || cfg.replacesPostProcessor() {
		t.prefix, t.suffix = nil, nil
		if t.bos != none && (cfg.AddBOS != nil && *cfg.AddBOS || cfg.AddBOS == nil && f.postProcessor != nil) {
			t.prefix = []int32{t.bos}
		}
		if t.eos != none && cfg.AddEOS != nil && *cfg.AddEOS {
			t.suffix = []int32{t.eos}
		}
	}
	if err := t.hfDecoder(f.decoder); err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	return t, nil
}

// readAdded reads the added tokens.
func (f *hfFile) readAdded(s *strictjson.Scanner) error {
	if s.Null() {
		return nil
	}
	return s.Array("an array", func(n int) error {
		if n > maxAdded {
			return fmt.Errorf("found more than %d added tokens", maxAdded)
		}
		var e addedTokenEntry
		if err := unmarshalPart(s, &e); err != nil {
			return fmt.Errorf("added token %d: %w", n, err)
		}
		f.added = append(f.added, e)
		return nil
	})
}

// hfAdded adds the added tokens. One that is also a piece of the model has the id of
// that piece.
func (t *Tokenizer) hfAdded(entries []addedTokenEntry) error {
	for n, e := range entries {
		if e.Content == "" {
			continue
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
	}
	return nil
}
